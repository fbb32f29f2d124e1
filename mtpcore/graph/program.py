"""Program: a graph as plain data, which backends lower.

A ``Program`` has symbolic row counts: ``TOKENS`` rows of the batch, ``OUTPUTS`` rows of it that
were asked for, ``SOURCES`` rows of a whole sequence that another graph delivers. It names weights
but holds none, and declares the memory that its attention needs.
Its parts refer to nothing that refers back, so the garbage collector need not visit them
(``gc=False``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.declarations.spec import INPUTS
from mtpcore.graph.parts import part_sizes

__all__ = [
    "OUTPUTS",
    "SOURCES",
    "TOKENS",
    "ConvLayer",
    "DeltaLayer",
    "Dim",
    "MemoryLayer",
    "Node",
    "Program",
    "Shape",
    "StateLayer",
    "Value",
    "Weight",
]

TOKENS: Final = "n_tokens"
OUTPUTS: Final = "n_outputs"
SOURCES: Final = "n_sources"
Dim = int | Literal["n_tokens", "n_outputs", "n_sources"]
Shape = tuple[Dim, ...]


class Value(msgspec.Struct, frozen=True, gc=False):
    """An array: an input, or the output of a node; the first axis counts rows.

    ``dtype`` is ``f32`` or ``i32``. ``n_experts`` is, of the ids that a route makes, among how many
    experts they choose; 0 of everything else.
    """

    id: int
    name: str
    shape: Shape
    dtype: Literal["f32", "i32"] = "f32"
    n_experts: int = 0


class Weight(msgspec.Struct, frozen=True, gc=False):
    """A tensor that a node reads, by the name that its tie resolved to.

    ``wanted`` is the name the graph asked for, ``shape`` is in NumPy order.
    """

    tensor: str
    wanted: str
    shape: tuple[int, ...]


class MemoryLayer(msgspec.Struct, frozen=True, gc=False):
    """What one attention node stores for each token: keys and values of some heads.

    ``window`` > 0 means that positions older than that many (the query included) are never read.
    ``latent`` means that the first ``v_width`` entries of each K row are its V row, which is not
    kept a second time.
    """

    layer: int
    n_heads: int
    k_width: int
    v_width: int
    window: int = 0
    latent: bool = False

    @property
    def n_values(self) -> int:
        """Values that are stored for each position."""
        return self.n_heads * (self.k_width + (0 if self.latent else self.v_width))


class ConvLayer(msgspec.Struct, frozen=True, gc=False):
    """What one causal convolution keeps of a sequence: its newest ``kernel - 1`` rows."""

    layer: int
    channels: int
    kernel: int

    @property
    def n_values(self) -> int:
        """Values of a state."""
        return (self.kernel - 1) * self.channels

    @property
    def n_logged(self) -> int:
        """Values of a row that its part in the state is made from."""
        return self.channels


class DeltaLayer(msgspec.Struct, frozen=True, gc=False):
    """What one delta rule keeps of a sequence: for each head a matrix [k_width, v_width].

    ``n_key_heads`` have keys, which heads share in the order ``key_heads``. ``by_channel`` says
    that each entry of a key has a decay of its own, and not each head one for all; ``corrects``
    that values are added less what their keys read. With ``rates``, a tensor [n_heads * v_width,
    k_width], each entry of a value has one, and column j of a state decays by it times row j.
    """

    layer: int
    n_heads: int
    n_key_heads: int
    k_width: int
    v_width: int
    key_heads: Literal["tiled", "grouped"]
    by_channel: bool = False
    corrects: bool = True
    rates: Weight | None = None

    def key_head(self, head: int) -> int:
        """Return the key head of a head."""
        if self.key_heads == "tiled":
            return head % self.n_key_heads
        return head // (self.n_heads // self.n_key_heads)

    @property
    def n_decays(self) -> int:
        """Decays of a head."""
        if self.rates is not None:
            return self.v_width
        return self.k_width if self.by_channel else 1

    @property
    def n_values(self) -> int:
        """Values of a state."""
        return self.n_heads * self.k_width * self.v_width

    @property
    def n_logged(self) -> int:
        """Values of a row that its part in the state is made from: k, v, decay and beta."""
        return self.n_key_heads * self.k_width + self.n_heads * (self.v_width + self.n_decays + 1)


StateLayer = ConvLayer | DeltaLayer
"""What one recurrent node keeps of each sequence."""


class Node(msgspec.Struct, frozen=True, gc=False):
    """One operation of the table in ``mtpcore.graph.ops``."""

    op: str
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    weights: tuple[Weight | None, ...] = ()
    attrs: dict[str, Any] = {}


class Program(msgspec.Struct, frozen=True, dict=True):
    """A checked graph: values, nodes in order, named inputs and outputs, memory and states.

    Nodes whose rows are ``SOURCES`` run once, when a whole sequence is delivered, the others with
    each batch: ``split_sources`` parts them. What the former leave to the latter is in memory.

    Attributes
    ----------
    name : str
    values : tuple of Value
        By id.
    nodes : tuple of Node
        In the order in which they run.
    inputs : dict of str to int
        Ids of values: ``tokens`` i32[n_tokens] (-1 where an embedding row stands), ``positions``
        i32[n_tokens, axes], where the graph takes them ``embeddings`` f32[n_tokens, width] and
        ``codes`` i32[n_tokens, n], and each slot, f32[n_tokens, width], or f32[n_sources, width]
        of whole sequences.
    outputs : dict of str to int
        Ids of values: ``logits`` f32[n_outputs, n_vocab], taps and recycled states
        f32[n_tokens, width].
    memory : tuple of MemoryLayer
        What its attention stores, by number of the layer.
    taps : tuple of str
        All that the graph offers, asked for or not.
    states : tuple of StateLayer
        Of recurrent layers, by number, a layer's convolution first.
    delivered : tuple of MemoryLayer
        Layers of whole sequences; their numbers are not in ``memory``.
    shared : tuple of MemoryLayer
        Layers of another graph's memory, which this one reads and never writes; a graph that has
        any has no memory and no states of its own.
    limit : (int, str) or None
        The longest context in which the graph computes what the model does, and why.
    """

    name: str
    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    inputs: dict[str, int]
    outputs: dict[str, int]
    memory: tuple[MemoryLayer, ...] = ()
    taps: tuple[str, ...] = ()
    states: tuple[StateLayer, ...] = ()
    delivered: tuple[MemoryLayer, ...] = ()
    shared: tuple[MemoryLayer, ...] = ()
    limit: tuple[int, str] | None = None

    def shape(self, output: str) -> Shape:
        """Return the shape of a named output."""
        return self.values[self.outputs[output]].shape

    @property
    def n_axes(self) -> int:
        """How many numbers a position has."""
        return int(self.values[self.inputs["positions"]].shape[1])

    def slots(self) -> Mapping[str, int]:
        """Return the width of each slot that has a row for each token."""
        return self._slots

    @cached_property
    def n_embeddings(self) -> int:
        """How many tokens there are embeddings of; 0 where it reads no tokens."""
        tables = [
            (node.weights[0], node.attrs.get("n_parts", 1), node.attrs.get("n_first", 0))
            for node in self.nodes
            if node.op in ("embed", "embed_by_position")
        ]
        return min(
            (max(part_sizes(table.shape[0], n, first)) for table, n, first in tables if table),
            default=0,
        )

    @cached_property
    def _slots(self) -> dict[str, int]:
        return {
            name: int(self.values[value].shape[1])
            for name, value in self.inputs.items()
            if name not in INPUTS and self.values[value].shape[0] == TOKENS
        }

    @property
    def remembers(self) -> bool:
        """Whether it stores anything: then it runs with a memory of its own."""
        return bool(self.memory or self.states or self.delivered)

    @property
    def whole_slot(self) -> str | None:
        """The slot that is fed whole sequences; None where there is none."""
        found = (name for name, i in self.inputs.items() if self.values[i].shape[0] == SOURCES)
        return next(found, None)

    @property
    def sees_ahead(self) -> bool:
        """Whether rows of a batch see later ones of their sequence."""
        return any(
            node.op in ("block_mean", "block_attention")
            or (node.op == "attention" and node.attrs["mask"] == "block")
            for node in self.nodes
        )

    @property
    def is_run_whole(self) -> bool:
        """Whether a row depends on which rows of its sequence come with it: they stay together."""
        of_blocks = ("block_mix", "block_conv", "block_walk")
        return self.sees_ahead or any(node.op in of_blocks for node in self.nodes)

    @property
    def n_codes(self) -> int:
        """How many codes a row has; 0 where the graph reads none."""
        return int(self.values[self.inputs["codes"]].shape[1]) if "codes" in self.inputs else 0

    @property
    def sees_spans(self) -> bool:
        """Whether rows of a span, such as an image's, see each other in both directions."""
        return any(n.op == "attention" and n.attrs["mask"] == "spans" for n in self.nodes)

    @property
    def n_per_codebook(self) -> tuple[int, ...]:
        """How many codes each codebook has; none where the graph reads no codes."""
        nodes = [node for node in self.nodes if node.op == "embed_codes"]
        sizes = [
            part_sizes(table.shape[0], self.n_codes, node.attrs["n_first"])
            for node in nodes
            for table in node.weights
            if table
        ]
        if not sizes:
            return (0,) * self.n_codes
        first, each = (min(column) for column in zip(*sizes, strict=True))
        return (first, *[each] * (self.n_codes - 1))

    def n_tokens_at(self, positions: NDArray[np.int32]) -> NDArray[np.int64] | None:
        """Return how many tokens the part of a table has that each position takes.

        None where all parts are equal, or no table has parts.

        Parameters
        ----------
        positions : int32[n]
            On the first axis.
        """
        least: NDArray[np.int64] | None = None
        for node in self.nodes:
            table = node.weights[0] if node.op == "embed_by_position" else None
            if table is None or not node.attrs["n_first"]:
                continue
            first, each = part_sizes(table.shape[0], node.attrs["n_parts"], node.attrs["n_first"])
            own = np.where(positions <= node.attrs["first"], first, each)
            least = own if least is None else np.minimum(least, own)
        return least

    def weights(self) -> dict[str, Weight]:
        """Return every weight that the nodes read, by tensor name, in order of first use."""
        weights: dict[str, Weight] = {}
        for node in self.nodes:
            for weight in node.weights:
                if weight is not None:
                    weights.setdefault(weight.tensor, weight)
        return weights

    def __str__(self) -> str:
        def show(value_id: int) -> str:
            value = self.values[value_id]
            return f"%{value.id}:{value.dtype}[{', '.join(map(str, value.shape))}]"

        lines = [f"program {self.name}"]
        lines += [f"  input {name} = {show(i)}" for name, i in self.inputs.items()]
        for node in self.nodes:
            arguments = [f"%{i}" for i in node.inputs]
            arguments += [w.tensor if w else "-" for w in node.weights]
            arguments += [f"{key}={_brief(value)}" for key, value in node.attrs.items()]
            results = ", ".join(show(i) for i in node.outputs)
            lines.append(f"  {results} = {node.op}({', '.join(arguments)})  # {node.name}")
        lines += [f"  output {name} = %{i}" for name, i in self.outputs.items()]
        return "\n".join(lines)


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
