"""The builder with which the graphs of trunks and heads are written.

Each method adds an operation and checks shapes at once; an error names node, tensor and shapes.
Weight names may hold ``{n}``, the head's block; ties decide which tensor a name means.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol

from mtpcore.declarations.spec import TARGET, Tap, Tie
from mtpcore.errors import GraphError, PluginError, spell
from mtpcore.graph.inference import check, fit_weights, infer
from mtpcore.graph.inputs import Inputs, Outputs
from mtpcore.graph.program import (
    OUTPUTS,
    SOURCES,
    TOKENS,
    ConvLayer,
    DeltaLayer,
    MemoryLayer,
    Node,
    Program,
    Shape,
    StateLayer,
    Value,
    Weight,
)

__all__ = ["GraphBuilder", "TensorShape"]


class TensorShape(Protocol):
    """What a builder needs of a tensor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in NumPy order."""


class GraphBuilder:
    """Collects nodes into a Program.

    Each method adds a node and returns its value, or raises GraphError if shapes do not fit. Values
    are float32. T, the first axis of every value, counts the tokens of a batch; after
    ``output_rows`` only those whose outputs are wanted. ``weight``, ``bias`` and ``table`` name
    tensors, through their ties; ``name`` names the node in errors and drawings, by default after
    its tensor.

    Parameters
    ----------
    name : str
        The graph's, in errors.
    tensors : mapping of str to TensorShape
        The file's tensors; a method that names another one fails.
    ties : sequence of Tie
        Other names that tensors may have.
    slots : mapping of str to int
        Declared slots and their widths.
    taps : sequence of Tap
        Taps that were asked for; ``tap`` keeps only these.
    n : int, optional
        The head's block, put in place of ``{n}`` in names.
    axes : int
        Axes of a position (1, or more for multi-axis RoPE).
    whole : collection of str
        Slots that are fed whole sequences.
    shared : sequence of MemoryLayer, optional
        For each layer of the graph the one of another graph's memory that ``attend`` reads.
    scales : mapping of str to str
        Of matrices that have one, by the name without ``.weight``, the tensor of their scale:
        products are multiplied by it, of a stack of experts by that of each.
    is_long : bool
        Whether the context is longer than ``n_ctx_short`` of the hyper-parameters.
    """

    def __init__(
        self,
        name: str,
        tensors: Mapping[str, TensorShape],
        *,
        ties: Sequence[Tie] = (),
        slots: Mapping[str, int] | None = None,
        taps: Sequence[Tap] = (),
        n: int | None = None,
        axes: int = 1,
        whole: Collection[str] = (),
        shared: Sequence[MemoryLayer] | None = None,
        scales: Mapping[str, str] | None = None,
        is_long: bool = False,
    ) -> None:
        self.name, self._n, self.tensors, self.is_long = name, n, tensors, is_long
        self._scales = scales or {}
        self._prefix = ""
        self._wanted_taps = frozenset(taps)
        self._ties = {self._expand(tie.tensor): tie for tie in ties}
        self._values: list[Value] = []
        self._nodes: list[Node] = []
        self._inputs: dict[str, int] = {}
        self._memory: dict[int, MemoryLayer] = {}
        self._delivered: dict[int, MemoryLayer] = {}
        self._shared, self._read = shared, dict[int, MemoryLayer]()
        self._states: dict[tuple[type[StateLayer], int], StateLayer] = {}
        self._taps: dict[str, Value] = {}
        self._offered: list[str] = []
        self._limit: tuple[int, str] | None = None
        self.inputs = Inputs(self.add_input, dict(slots or {}), axes, whole)

    @property
    def n(self) -> int:
        """The head's block.

        Raises
        ------
        GraphError
            The graph is a trunk's, which has no block of its own.
        """
        if self._n is None:
            raise GraphError(
                "a trunk's graph has no head's block", where=self.name, wanted="a drafter's graph"
            )
        return self._n

    # Weights

    def _expand(self, name: str) -> str:
        return self._number(self._prefix + name)

    def _number(self, name: str) -> str:
        return name if self._n is None else name.replace("{n}", str(self._n))

    @contextmanager
    def within(self, prefix: str) -> Iterator[None]:
        """Let names of tensors begin with ``prefix``: a file may hold several stacks of blocks."""
        before, self._prefix = self._prefix, self._prefix + prefix
        try:
            yield
        finally:
            self._prefix = before

    def _stem(self, name: str) -> str:
        """Return the node name that a weight's name suggests."""
        return self._expand(name).removesuffix(".weight")

    def resolve(self, name: str) -> Weight | None:
        """Return the weight that ``name`` means, through its tie, or None where it is absent."""
        wanted = self._expand(name)
        tie = self._ties.get(wanted)
        for tensor in map(self._number, tie.candidates if tie else (wanted,)):
            if tensor in self.tensors:
                return Weight(tensor, wanted, tuple(self.tensors[tensor].shape))
        return None

    def has(self, name: str) -> bool:
        """Say whether a tensor (or one it is tied to) is in the file."""
        return self.resolve(name) is not None

    def scale_of(self, weight: str) -> str | None:
        """Return the tensor by which products of a matrix are multiplied, or None.

        It stands beside the matrix, or beside its name where that is tied to another matrix.
        """
        found = self.resolve(weight)
        own = found.tensor.removesuffix(".weight") if found else ""
        return self._scales.get(own) or self._scales.get(self._stem(weight))

    def _weight(self, name: str, node: str) -> Weight:
        weight = self.resolve(name)
        if weight is None:
            wanted = self._expand(name)
            tie, stem = self._ties.get(wanted), wanted.split(".")[-2] if "." in wanted else wanted
            near = ", ".join([t for t in self.tensors if stem in t][:3])
            lent = tie is not None and tie.candidates[-1].startswith(TARGET)
            raise GraphError(
                "tensor is not in the model",
                where=f"{node}: {wanted}",
                got="no target is linked to lend it" if lent else f"near: {near}" if near else None,
                fix="link the two: link(llm, draft_model=...)"
                if lent
                else "convert the checkpoint again with this tensor kept",
            )
        return weight

    # Nodes

    def add_input(self, name: str, shape: Shape, dtype: str = "f32") -> Value:
        """Return the named input of a ``shape`` and ``dtype`` (f32, i32), adding it once."""
        if name not in self._inputs:
            self._inputs[name] = self._value(name, shape, dtype).id
        return self._values[self._inputs[name]]

    def _value(self, name: str, shape: Shape, dtype: str, n_experts: int = 0) -> Value:
        value = Value(len(self._values), name, shape, dtype, n_experts)  # type: ignore[arg-type]
        self._values.append(value)
        return value

    def add_node(
        self,
        op: str,
        inputs: Sequence[Value],
        weights: Sequence[str | None] = (),
        *,
        name: str | None = None,
        **attrs: object,
    ) -> tuple[Value, ...]:
        """Add a node of any operation in the table; the methods below are shorter.

        Parameters
        ----------
        op : str
            Name of the operation; see ``mtpcore.graph.ops``.
        inputs, weights
            What it computes with: values, and names of tensors.
        name : str, optional
            The node's.
        **attrs
            What else the operation asks for.

        Returns
        -------
        tuple of Value
            One for each result.

        Raises
        ------
        GraphError
            No such operation, or something that it cannot compute with.
        """
        node = name or f"{op}_{len(self._nodes)}"
        resolved = fit_weights(
            op, inputs, [None if w is None else self._weight(w, node) for w in weights]
        )
        signatures = infer(
            op,
            node,
            inputs,
            [w.shape if w else None for w in resolved],
            attrs,
            [w.tensor for w in resolved if w],
        )
        outputs = tuple(self._value(node, *signature) for signature in signatures)
        self._nodes.append(
            Node(
                op, node, tuple(v.id for v in inputs), tuple(v.id for v in outputs), resolved, attrs
            )
        )
        return outputs

    # Operations

    def embed(
        self,
        tokens: Value,
        table: str,
        *,
        embeddings: bool = False,
        scale: float = 1.0,
        absent: int = -1,
        name: str | None = None,
    ) -> Value:
        """Look tokens up: [T] -> [T, width].

        Parameters
        ----------
        tokens : Value
            i32[T]
        table : str
            [n_vocab, width]
        embeddings : bool
            Whether embedding rows may stand in place of tokens.
        scale : float
            What rows of the table are multiplied by; embedding rows are not.
        absent : int
            For a second table: the token whose row an embedding row gets (-1: none).
        """
        inputs = [tokens]
        if embeddings:
            width = self._weight(table, name or "embed").shape[-1]
            inputs.append(self.add_input("embeddings", (TOKENS, width)))
        return self.add_node(
            "embed",
            inputs,
            [table],
            name=name or self._stem(table),
            scale=float(scale),
            absent=absent,
        )[0]

    def embed_by_position(
        self,
        tokens: Value,
        positions: Value,
        table: str,
        n_parts: int,
        *,
        first: int = 0,
        n_first: int = 0,
        embeddings: bool = False,
        name: str | None = None,
    ) -> Value:
        """Look tokens up in the part of the table that their position says: -> [T, width].

        A token that its part lacks gives zeros.

        Parameters
        ----------
        tokens, positions : Value
            i32[T] and i32[T, axes]; the first axis counts.
        table : str
            [n_parts x rows, width], or [n_first + (n_parts - 1) x rows, width]
        n_parts, first : int
            Position ``first`` and those before it take the first part, the next one the second.
        n_first : int
            Rows of the first part (0: as many as each other one has).
        embeddings : bool
            Whether a row may be an embedding row.
        """
        inputs = [tokens, positions]
        if embeddings:
            width = self._weight(table, name or "embed_by_position").shape[-1]
            inputs.append(self.add_input("embeddings", (TOKENS, width)))
        name = name or self._stem(table)
        return self.add_node(
            "embed_by_position",
            inputs,
            [table],
            name=name,
            n_parts=n_parts,
            first=first,
            n_first=n_first,
        )[0]

    def embed_positions(self, positions: Value, table: str, *, name: str | None = None) -> Value:
        """Look positions up: [T, 1] -> [T, width].

        Parameters
        ----------
        positions : Value
            i32[T, 1]
        table : str
            [n_positions, width]; a position after its last one gives zeros, and a context has no
            more places (``limit_context``).
        """
        name = name or self._stem(table)
        n_positions = self._weight(table, name).shape[0]
        self.limit_context(n_positions, f"{self._expand(table)} has as many positions")
        return self.add_node("embed_positions", [positions], [table], name=name)[0]

    def embed_codes(
        self, codes: Value, table: str, *, n_first: int = 0, name: str | None = None
    ) -> Value:
        """Sum the embeddings of a row's codes: [T, n] -> [T, width].

        Code i of a row is a row of part i of the table; a code of -1, or any other that its part
        lacks, adds nothing.

        Parameters
        ----------
        codes : Value
            i32[T, n]
        table : str
            [n x rows, width], or [n_first + (n - 1) x rows, width]
        n_first : int
            Rows of the first part (0: as many as each other one has).
        """
        name = name or self._stem(table)
        return self.add_node("embed_codes", [codes], [table], name=name, n_first=n_first)[0]

    def embedding_rows(self, width: int, *, name: str | None = None) -> Value:
        """Return the embedding rows, to be added to what tokens become: [T, ``width``].

        Zeros where a token stands.
        """
        rows = self.add_input("embeddings", (TOKENS, width))
        return self.add_node("embedding_rows", [self.inputs.tokens, rows], name=name)[0]

    def matmul_by_position(
        self, x: Value, positions: Value, weight: str, *, first: int = 0, name: str | None = None
    ) -> Value:
        """Multiply each row by the matrix of its position: [T, inputs] -> [T, outputs].

        Parameters
        ----------
        x : Value
            Rows of the batch, or those whose outputs are wanted.
        positions : Value
            i32[T, axes] of the batch; the first axis counts.
        weight : str
            A stack of matrices, [n, outputs, inputs].
        first : int
            Position ``first`` and those before it take the first matrix, the next one the second.
        """
        name = name or self._stem(weight)
        return self.add_node(
            "matmul_by_position", [x, positions], [weight], name=name, first=first
        )[0]

    def matmul(
        self,
        x: Value,
        weight: str,
        bias: str | None = None,
        *,
        scales_bias: bool = False,
        name: str | None = None,
    ) -> Value:
        """Multiply rows by a matrix, and by its scale: [T, inputs] -> [T, outputs].

        Parameters
        ----------
        x : Value
            [T, inputs]
        weight, bias : str
            [outputs, inputs] and [outputs]; an absent bias is left out.
        scales_bias : bool
            Whether a scale beside the matrix multiplies the bias, too; else the product alone.
        """
        name = name or self._stem(weight)
        weights = [weight, bias] if bias and self.has(bias) else [weight]
        scale = self.scale_of(weight)
        if scale is None:
            return self.add_node("matmul", [x], weights, name=name)[0]
        if scales_bias or len(weights) == 1:
            return self.scale_by(self.add_node("matmul", [x], weights, name=name)[0], scale)
        y = self.scale_by(self.add_node("matmul", [x], [weight], name=name)[0], scale)
        return self.shift_by(y, weights[1])

    def rms_norm(
        self, x: Value, weight: str | None, eps: float, *, name: str | None = None
    ) -> Value:
        """Norm the last axis by its root mean square: x / sqrt(mean(x**2) + eps) * weight."""
        name = name or (self._stem(weight) if weight else None)
        return self.add_node("rms_norm", [x], [weight] if weight else [], name=name, eps=eps)[0]

    def layer_norm(
        self, x: Value, weight: str | None, bias: str | None, eps: float, *, name: str | None = None
    ) -> Value:
        """Norm the last axis by mean and variance, ``eps`` added to the latter; weight and bias."""
        return self.add_node("layer_norm", [x], [weight, bias], name=name, eps=eps)[0]

    def l2_norm(self, x: Value, eps: float, *, name: str | None = None) -> Value:
        """Norm the last axis by its length: x / sqrt(sum(x**2) + eps)."""
        return self.add_node("l2_norm", [x], name=name, eps=eps)[0]

    def add(self, a: Value, b: Value, *, name: str | None = None) -> Value:
        """Return a + b, of one shape."""
        return self.add_node("add", [a, b], name=name)[0]

    def mul(self, a: Value, b: Value, *, name: str | None = None) -> Value:
        """Return a * b element by element, of one shape.

        For heads ``a`` [T, H, D], ``b`` may be [T, H]: one value a head.
        """
        return self.add_node("mul", [a, b], name=name)[0]

    def scale(self, x: Value, factor: float, *, name: str | None = None) -> Value:
        """Multiply by a number, ``factor``."""
        return self.add_node("scale", [x], name=name, factor=float(factor))[0]

    def scale_by_position(
        self,
        x: Value,
        positions: Value,
        *,
        beta: float,
        n: int,
        offset: int = 0,
        name: str | None = None,
    ) -> Value:
        """Multiply rows by a factor that grows with the position: 1 up to position n - offset.

        The factor of position p is 1 + ``beta`` log(1 + floor((p + ``offset``) / ``n``)). Queries
        times it keep their attention on few of many keys (Nakanishi 2025, "Scalable-Softmax Is
        Superior for Attention").

        Parameters
        ----------
        x : Value
            [T, ...], rows of the batch.
        positions : Value
            i32[T, axes]; the first axis counts.
        beta : float
            Factor of the logarithm.
        n : int
            Positions that share a factor.
        offset : int
            Added to positions first.
        """
        return self.add_node(
            "scale_by_position", [x, positions], name=name, beta=float(beta), n=n, offset=offset
        )[0]

    def clamp(self, x: Value, limit: float, *, name: str | None = None) -> Value:
        """Cut values to -``limit`` .. ``limit``; what is not a number stays."""
        return self.add_node("clamp", [x], name=name, limit=float(limit))[0]

    def scale_by(self, x: Value, weight: str, *, name: str | None = None) -> Value:
        """Multiply each value of the last axis by its factor, ``weight``: [width], or all: [1].

        Of heads [T, H, D] each may have its own, [H, D] or one for its values, [H, 1].
        """
        return self.add_node("scale_by", [x], [weight], name=name or self._stem(weight))[0]

    def shift_by(self, x: Value, weight: str, *, name: str | None = None) -> Value:
        """Add to each value of the last axis its term, ``weight``, which is as in ``scale_by``."""
        return self.add_node("shift_by", [x], [weight], name=name or self._stem(weight))[0]

    def activation(self, x: Value, kind: str, *, name: str | None = None) -> Value:
        """Apply a ``kind`` of function: silu, gelu, gelu_tanh, relu, sigmoid, tanh, softplus.

        ``gelu_sigmoid`` is x sigmoid(1.702 x), an approximation of GELU.
        """
        return self.add_node("activation", [x], name=name, kind=kind)[0]

    def xielu(
        self,
        x: Value,
        *,
        alpha_p: float,
        alpha_n: float,
        beta: float,
        eps: float,
        name: str | None = None,
    ) -> Value:
        """Apply the expanded integral of ELU, a parabola above 0 and an exponential below.

        That is ``alpha_p`` x**2 + ``beta`` x where x > 0, and elsewhere ``alpha_n``
        (expm1(min(x, ``eps``)) - x) + ``beta`` x (Huang and Schlag 2024, "Deriving Activation
        Functions Using Integration", arXiv 2411.13010).
        """
        return self.add_node(
            "xielu",
            [x],
            name=name,
            alpha_p=float(alpha_p),
            alpha_n=float(alpha_n),
            beta=float(beta),
            eps=float(eps),
        )[0]

    def gaussian_topk(self, x: Value, n_deviations: float, *, name: str | None = None) -> Value:
        """Return by how much values of the last axis are above a cutoff, 0 for those below.

        The cutoff is the mean plus ``n_deviations`` standard deviations: of normally distributed
        values the largest are left, about as many as the normal distribution has above it (You et
        al. 2025, "Spark Transformer", arXiv 2506.06644).
        """
        return self.add_node("gaussian_topk", [x], name=name, n_deviations=float(n_deviations))[0]

    def gated(
        self,
        gate: Value,
        up: Value,
        kind: str = "silu",
        *,
        limit: float = 0.0,
        offset: int = 0,
        name: str | None = None,
    ) -> Value:
        """Return kind(gate) * (up + offset).

        Parameters
        ----------
        gate, up : Value
            Of one shape.
        kind : str
            As in ``activation``.
        limit : float
            The largest ``gate``, and the largest magnitude of ``up``; larger ones are cut to it
            before anything else (0: none are).
        offset : int
            0 or 1.
        """
        limit = float(limit)
        return self.add_node("gated", [gate, up], name=name, kind=kind, limit=limit, offset=offset)[
            0
        ]

    def concat(self, *parts: Value, name: str | None = None) -> Value:
        """Join ``parts`` along the last axis, in the order given."""
        return self.add_node("concat", parts, name=name)[0]

    def slice(self, x: Value, start: int, stop: int, *, name: str | None = None) -> Value:
        """Return x[..., start:stop]."""
        return self.add_node("slice", [x], name=name, start=start, stop=stop)[0]

    def split_heads(self, x: Value, n_heads: int, *, name: str | None = None) -> Value:
        """Reshape [T, n_heads * D] to [T, n_heads, D]."""
        return self.add_node("split_heads", [x], name=name, n_heads=n_heads)[0]

    def merge_heads(self, x: Value, *, name: str | None = None) -> Value:
        """Reshape heads into rows: [T, H, D] -> [T, H * D]."""
        return self.add_node("merge_heads", [x], name=name)[0]

    def repeat(self, x: Value, n_heads: int, *, name: str | None = None) -> Value:
        """Repeat one head for all: [T, 1, D] -> [T, n_heads, D]."""
        return self.add_node("repeat", [x], name=name, n_heads=n_heads)[0]

    def head_matmul(self, x: Value, weight: str, *, name: str | None = None) -> Value:
        """Multiply each head by a matrix of its own: [T, H, inputs] -> [T, H, outputs]."""
        return self.add_node("head_matmul", [x], [weight], name=name or self._stem(weight))[0]

    def rope(
        self,
        x: Value,
        positions: Value,
        frequencies: Sequence[float],
        *,
        style: str = "halves",
        axes: Sequence[int] | None = None,
        magnitude: float = 1.0,
        factors: str | None = None,
        name: str | None = None,
    ) -> Value:
        """Rotate the first 2 * len(frequencies) dimensions of each head by its position.

        Parameters
        ----------
        x : Value
            [T, H, D]
        positions : Value
            i32[T, axes]
        frequencies : sequence of float
            Of each pair; pair i is rotated by ``positions[t, axes[i]] * frequencies[i]``.
        style : str
            ``halves``: pairs are (i, i + n / 2); ``pairs``: (2 i, 2 i + 1).
        axes : sequence of int, optional
            Which axis of a position rotates each pair; default: the first.
        magnitude : float
            What the rotated dimensions are multiplied by.
        factors : str, optional
            A tensor by whose first values the frequencies are divided.
        """
        return self.add_node(
            "rope",
            [x, positions],
            [factors] if factors else [],
            name=name,
            frequencies=tuple(float(f) for f in frequencies),
            style=style,
            axes=tuple(axes) if axes else (0,) * len(frequencies),
            magnitude=float(magnitude),
        )[0]

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value | int,
        *,
        layer: int,
        scale: float,
        mask: str = "causal",
        window: int = 0,
        sinks: str | None = None,
        bias: str | None = None,
        max_distance: int = 128,
        softcap: float = 0.0,
        max_alibi_bias: float = 0.0,
        name: str | None = None,
    ) -> Value:
        """Store k and v in layer ``layer`` of the KV cache and attend: [T, H, Dk] -> [T, H, Dv].

        Parameters
        ----------
        q, k, v : Value
            [T, H, Dk], [T, Hk, Dk] and [T, Hk, Dv]. If ``v`` is a number, the first ``v`` entries
            of each key are its value (a latent cache), and only the keys are stored.
        layer : int
            Layer of the KV cache; each is written once.
        scale : float
            Factor of the products of q and k.
        mask : str
            What a row sees: ``causal``, what precedes it and itself; ``block``, its whole sequence;
            ``spans``, as causal, and all of the span that it is in (``Batch.until``).
        window : int
            How many tokens a row sees at most, itself included (0: all).
        sinks : str, optional
            A tensor: one more score for each head in the softmax, with a value of zeros.
        bias : str, optional
            A tensor [buckets, H]: a term of each score, by the distance in places between key and
            row (a relative position bias; ``mtpcore.graph.buckets``). With the mask ``block`` half
            of the buckets are for keys after the row.
        max_distance : int
            From this distance on all keys share a bucket of the bias.
        softcap : float
            Scores become ``softcap`` tanh(score / ``softcap``), before any bias (0: they stay).
        max_alibi_bias : float
            A score loses its head's slope for each place between row and key: ALiBi, whose least
            slope is 2^-max_alibi_bias (``mtpcore.graph.alibi``; 0: none).

        Raises
        ------
        GraphError
            A layer is written twice, or shapes do not fit.
        """
        latent = isinstance(v, int)
        attended = self.add_node(
            "attention",
            [q, k] if isinstance(v, int) else [q, k, v],
            [sinks, bias] if bias else [sinks] if sinks else [],
            name=name,
            layer=layer,
            scale=float(scale),
            mask=mask,
            window=window,
            v_width=v if isinstance(v, int) else 0,
            max_distance=max_distance if bias else 0,
            softcap=float(softcap),
            max_alibi_bias=float(max_alibi_bias),
        )[0]
        heads, k_width, v_width = int(k.shape[1]), int(k.shape[2]), int(attended.shape[2])
        self._write(self._memory, MemoryLayer(layer, heads, k_width, v_width, window, latent))
        return attended

    def attend(
        self,
        q: Value,
        *,
        layer: int,
        scale: float,
        mask: str = "causal",
        window: int = 0,
        sinks: str | None = None,
        softcap: float = 0.0,
        max_alibi_bias: float = 0.0,
        name: str | None = None,
    ) -> Value:
        """Attend to what another layer stored, and store nothing: [T, H, Dk] -> [T, H, Dv].

        Parameters
        ----------
        q : Value
            [T, H, Dk]
        layer : int
            Of the KV cache: one that an ``attention`` before this node has written. For a drafter
            that shares the target's memory, its own number of the layer, which the declaration
            maps to one of the target's.
        scale, mask, window, sinks, softcap, max_alibi_bias
            As in ``attention``; no wider a window than that layer keeps.

        Raises
        ------
        GraphError
            Nothing has written the layer, or shapes do not fit.
        """
        stored = self._stored_layer(layer, name or f"attention to layer {layer}")
        attended = self.add_node(
            "attention",
            [q],
            [sinks] if sinks else [],
            name=name,
            layer=stored.layer,
            scale=float(scale),
            mask=mask,
            window=window,
            v_width=stored.v_width,
            max_distance=0,
            softcap=float(softcap),
            max_alibi_bias=float(max_alibi_bias),
        )[0]
        fits = q.shape[2] == stored.k_width and int(q.shape[1]) % stored.n_heads == 0
        sees = not stored.window or 0 < window <= stored.window
        if not (fits and sees):
            raise GraphError(
                "queries do not fit what the layer stores",
                where=self._nodes[-1].name,
                wanted=f"heads of {stored.k_width}, a multiple of {stored.n_heads} of them, "
                f"and a window of at most {stored.window or 'any number of'} tokens",
                got=f"{q.shape[1]} heads of {q.shape[2]}, window {window}",
            )
        return attended

    def _write(self, layers: dict[int, MemoryLayer], layer: MemoryLayer) -> None:
        """Note what the newest node stores, in ``_memory`` or in ``_delivered``."""
        number = layer.layer
        if number in self._memory or number in self._delivered:
            where = self._nodes[-1].name
            raise GraphError("memory layer is written twice", where=where, got=number)
        layers[number] = layer

    def remember(
        self, k: Value, v: Value, *, layer: int, window: int = 0, name: str | None = None
    ) -> None:
        """Store k and v in layer ``layer`` of the KV cache, for another graph that attends to them.

        Parameters
        ----------
        k, v : Value
            [T, Hk, Dk] and [T, Hk, Dv], as the other graph's ``attention`` stores its own.
        layer : int
            Layer of the KV cache; each is written once.
        window : int
            As in the other graph's ``attention``.

        Raises
        ------
        GraphError
            A layer is written twice, or shapes do not fit.
        """
        self.add_node("remember", [k, v], name=name, layer=layer)
        where = self._nodes[-1].name
        if k.shape[0] != TOKENS:
            raise GraphError(
                "keys and values are of the rows of a batch",
                where=where,
                wanted=f"[{TOKENS}, heads, width]",
                got=k.shape,
                fix="g.cross_attention attends to whole sequences",
            )
        heads, k_width, v_width = int(k.shape[1]), int(k.shape[2]), int(v.shape[2])
        self._write(self._memory, MemoryLayer(layer, heads, k_width, v_width, window))

    def cross_attention(
        self, q: Value, k: Value, v: Value, *, layer: int, scale: float, name: str | None = None
    ) -> Value:
        """Attend to the rows of a whole sequence of another graph: [T, H, Dk] -> [T, H, Dv].

        What k and v are made of is computed once, when the sequence is delivered, and kept.

        Parameters
        ----------
        q : Value
            [T, H, Dk]
        k, v : Value
            [S, Hk, Dk] and [S, Hk, Dv], of rows of a slot that is fed whole sequences.
        layer : int
            Layer of the KV cache; each is written once.
        scale : float
            Factor of the products of q and k.

        Raises
        ------
        GraphError
            A layer is written twice, rows of a batch as k or v, or shapes do not fit.
        """
        self.add_node("remember", [k, v], name=name, layer=layer)
        where = self._nodes[-1].name
        if k.shape[0] != SOURCES:
            raise GraphError(
                "keys and values are of a whole sequence",
                where=where,
                wanted=f"[{SOURCES}, heads, width]",
                got=k.shape,
                fix='feed the slot with pairing="whole-sequence"',
            )
        if q.shape[2:] != k.shape[2:]:
            raise GraphError("q and k widths differ", where=where, wanted=k.shape, got=q.shape)
        heads, k_width, v_width = int(k.shape[1]), int(k.shape[2]), int(v.shape[2])
        self._write(self._delivered, MemoryLayer(layer, heads, k_width, v_width))
        return self.add_node(
            "cross_attention",
            [q],
            name=name,
            layer=layer,
            scale=float(scale),
            n_heads=heads,
            v_width=v_width,
        )[0]

    def _stored_layer(self, layer: int, where: str) -> MemoryLayer:
        """Return a layer that this graph has written, or one of the memory that it shares."""
        if layer in self._memory:
            return self._memory[layer]
        if self._shared is None or not 0 <= layer < len(self._shared):
            held = ", ".join(map(str, self._memory))
            raise GraphError(
                "no attention before this one stores the layer",
                where=where,
                wanted=held or "an attention with keys and values",
                got=layer,
                fix="write it first, or link the target whose memory the drafter reads: "
                "link(llm, draft_model=...)",
            )
        stored = self._shared[layer]
        self._read[stored.layer] = stored
        return stored

    def causal_conv(
        self, x: Value, weight: str, *, layer: int, kind: str = "silu", name: str | None = None
    ) -> Value:
        """Convolve each channel of a sequence's rows: [T, channels] -> [T, channels].

        Row t becomes ``kind`` of the sum over j of ``weight[:, j]`` times row t - kernel + 1 + j of
        the sequence; before its first row there are zeros. The newest kernel - 1 rows are kept as
        a state.

        Parameters
        ----------
        x : Value
            [T, channels]
        weight : str
            [channels, kernel]; the newest row's tap comes last.
        layer : int
            Number of the recurrent layer. A convolution and a delta rule may share theirs.
        kind : {"silu", "none"}
            The activation of the sums.

        Raises
        ------
        GraphError
            A layer has two convolutions, or shapes do not fit.
        """
        name = name or self._stem(weight)
        convolved = self.add_node("causal_conv", [x], [weight], name=name, layer=layer, kind=kind)
        taps = self._nodes[-1].weights[0]
        assert taps is not None
        self._add_state(ConvLayer(layer, taps.shape[0], taps.shape[1]))
        return convolved[0]

    def block_mean(self, x: Value, size: int, *, name: str | None = None) -> Value:
        """Give each row the mean of its block: [T, width] -> [T, width].

        Parameters
        ----------
        x : Value
            [T, width]
        size : int
            Rows of each block. A sequence's rows in a batch are cut into blocks one after the
            other; the last one may have fewer.
        """
        return self.add_node("block_mean", [x], name=name, size=size)[0]

    def block_mix(self, x: Value, weight: str, *, name: str | None = None) -> Value:
        """Mix the rows of a block, channel by channel: [T, channels] -> [T, channels].

        Row i of a block becomes the sum over j <= i of ``weight[i, j]`` times its row j.

        Parameters
        ----------
        x : Value
            [T, channels]
        weight : str
            [size, size, channels]; what lies above the diagonal is not read. Blocks are those of
            ``block_mean``.
        """
        return self.add_node("block_mix", [x], [weight], name=name or self._stem(weight))[0]

    def block_conv(
        self,
        x: Value,
        changes: Value,
        weight: str,
        *,
        size: int,
        part: int = 0,
        name: str | None = None,
    ) -> Value:
        """Convolve a block's rows, by a kernel that each row changes: -> [T, channels].

        Row i of a block becomes the sum over taps j <= i of its row i - j, each channel times
        ``weight[part, j]`` and what row i adds to that.

        Parameters
        ----------
        x : Value
            [T, channels]
        changes : Value
            [T, taps * groups]: what a row adds to each tap, one value for each group of channels
            side by side.
        weight : str
            [kernels, taps, channels], of which ``part`` is used; the row's own tap comes first.
        size : int
            Rows of a block, as of ``block_mean``.
        """
        name = name or f"{self._stem(weight)}.{part}"
        return self.add_node("block_conv", [x, changes], [weight], name=name, size=size, part=part)[
            0
        ]

    def keep_best(self, x: Value, n: int, *, name: str | None = None) -> Value:
        """Keep the ``n`` largest values of each row: [T, width], others become -inf.

        Of equal values the first ones are kept; one that is not a number stays what it is.
        """
        return self.add_node("keep_best", [x], name=name, n=n)[0]

    def find_best(self, x: Value, n: int, *, name: str | None = None) -> tuple[Value, Value]:
        """Find each row's ``n`` best columns: ids i32[T, n], and their shares f32[T, n, 2].

        Best first, of equal ones the first; what is not a number counts as -inf. Shares are those
        of a softmax over the whole row: the logarithm of each, then the share itself.
        """
        ids, shares = self.add_node("find_best", [x], name=name, n=n)
        return ids, shares

    def embed_ids(self, ids: Value, table: str, *, name: str | None = None) -> Value:
        """Look up ids that the graph itself found: i32[T, n] -> [T, n, width].

        ``table`` [rows, width] has a row for each of what ``ids`` were found among.
        """
        return self.add_node("embed_ids", [ids], [table], name=name or self._stem(table))[0]

    def rank_matmul(
        self, x: Value, weight: str, bias: str | None = None, *, name: str | None = None
    ) -> Value:
        """Multiply each rank of a row by the same matrix: [T, n, inputs] -> [T, n, outputs].

        An absent bias is left out.
        """
        weights = [weight, bias] if bias and self.has(bias) else [weight]
        return self.add_node("rank_matmul", [x], weights, name=name or self._stem(weight))[0]

    def block_attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        bias: str,
        *,
        size: int,
        scale: float,
        first: int = 0,
        name: str | None = None,
    ) -> Value:
        """Let all candidates of a block attend to each other: [T, n, width] -> [T, n, width].

        Nothing is stored. Heads are equal parts of the width.

        Parameters
        ----------
        q, k, v : Value
            [T, n, width]: n candidates of each row.
        bias : str
            [heads, 2 * size - 1]: a term of each score, by the row of the query less that of the
            key; that of distance 0 stands in the middle.
        size : int
            Rows of a block, as of ``block_mean``; all of them have ``MAX_CANDIDATES`` at most.
        scale : float
            Factor of the products of q and k.
        first : int
            The first row of a block that is seen.
        """
        return self.add_node(
            "block_attention",
            [q, k, v],
            [bias],
            name=name,
            size=size,
            first=first,
            scale=float(scale),
        )[0]

    def block_walk(
        self,
        ids: Value,
        start: Value,
        going: Value,
        coming: Value,
        *,
        size: int,
        width: int,
        first: int = 0,
        name: str | None = None,
    ) -> Value:
        """Score a block's candidates, each row's after the best of the row before: -> [T, width].

        The score of a candidate is the product of its ``coming`` vector with the ``going`` vector
        of the best candidate of the row before. It stands at the candidate's id; what is no
        candidate has -inf.

        Parameters
        ----------
        ids : Value
            i32[T, n], as ``find_best`` finds them.
        start : Value
            [T, k]: what stands in place of a ``going`` vector for row ``first``.
        going, coming : Value
            [T, n, k]
        size : int
            Rows of a block, as of ``block_mean``.
        width : int
            What the ids were found among.
        first : int
            The row of a block that a walk begins with; those before it have no candidates.
        """
        return self.add_node(
            "block_walk",
            [ids, start, going, coming],
            name=name,
            size=size,
            first=first,
            width=width,
        )[0]

    def delta_rule(
        self,
        q: Value,
        k: Value,
        v: Value,
        decay: Value,
        beta: Value,
        *,
        layer: int,
        key_heads: Literal["tiled", "grouped"] = "tiled",
        corrects: bool = True,
        rates: str | None = None,
        name: str | None = None,
    ) -> Value:
        """Update each head's state by the gated delta rule, and read it: -> [T, Hv, Dv].

        For each head, with its state S [Dk, Dv] from the sequence's row before (zeros at first):
        S = exp(decay) S; d = beta (v - S^T k); S = S + k d^T; the result is S^T q. States are
        float32. What q is scaled by and the norms of q and k are nodes of the graph before this
        one. (Yang, Kautz, Hatamizadeh 2024, "Gated Delta Networks"; with a decay for each entry of
        a key it is Kimi Delta Attention.) Without the correction, d = beta v, it is gated linear
        attention, and so is Mamba-2 (Dao, Gu 2024, "Transformers are SSMs"): its C is q, its B is
        k, its x is v, its dt is beta, and dt A is the decay. With ``rates`` it is the selective
        scan of Mamba (Gu, Dao 2023): one head whose value is dt x, with the decay dt and the rates
        A, of each channel and entry of the state.

        Parameters
        ----------
        q, k, v : Value
            [T, Hk, Dk], [T, Hk, Dk] and [T, Hv, Dv].
        decay : Value
            Its logarithm, at most 0: [T, Hv], or [T, Hv, Dk] where entries of a key have their own.
            With ``rates``, what these are multiplied by: [T, Hv, Dv].
        beta : Value
            [T, Hv]
        layer : int
            Number of the recurrent layer. A convolution and a delta rule may share theirs.
        key_heads : {"tiled", "grouped"}
            Which key head a head h has: ``h % Hk``, or ``h // (Hv // Hk)``.
        corrects : bool
            Whether what a key reads of its head's state is taken off the value first.
        rates : str, optional
            A weight [Hv * Dv, Dk]: entry [i, j] of head h's state S decays by the exponential of
            decay[h, j] * rates[h * Dv + j, i].

        Raises
        ------
        GraphError
            A layer has two delta rules, or shapes do not fit.
        """
        made = self.add_node(
            "delta_rule",
            [q, k, v, decay, beta],
            [] if rates is None else [rates],
            name=name,
            layer=layer,
            key_heads=key_heads,
            corrects=corrects,
        )[0]
        weights = self._nodes[-1].weights
        self._add_state(
            DeltaLayer(
                layer,
                n_heads=int(v.shape[1]),
                n_key_heads=int(k.shape[1]),
                k_width=int(k.shape[2]),
                v_width=int(v.shape[2]),
                key_heads=key_heads,
                by_channel=len(decay.shape) == 3 and not weights,
                corrects=corrects,
                rates=weights[0] if weights else None,
            )
        )
        return made

    def _add_state(self, state: StateLayer) -> None:
        key = type(state), state.layer
        if key in self._states:
            where = self._nodes[-1].name
            raise GraphError("recurrent layer is written twice", where=where, got=state.layer)
        self._states[key] = state

    def route(
        self,
        x: Value,
        weight: str,
        correction: str | None = None,
        *,
        bias: str | None = None,
        factors: str | None = None,
        n_used: int,
        gate: str = "sigmoid",
        normalise: bool = True,
        scale: float = 1.0,
        n_groups: int = 1,
        n_groups_used: int = 1,
        n_best_of_group: int = 2,
        name: str | None = None,
    ) -> tuple[Value, Value]:
        """Choose experts: ids i32[T, n_used] and their weights f32[T, n_used].

        Parameters
        ----------
        x : Value
            [T, width]
        weight : str
            The router, [experts, width].
        correction : str, optional
            A tensor [experts], added where experts are chosen and not where they are weighted.
        bias, factors : str, optional
            Tensors [experts]: what is added to the router's logits, and by what the weights of the
            chosen ones are multiplied in the end. Like the correction, one that the file lacks is
            left out.
        n_used : int
            Experts of a token.
        gate : str
            ``sigmoid`` or ``softmax`` of the router's logits.
        normalise : bool
            Whether the weights of a token's experts are divided by their sum.
        scale : float
            What the weights are multiplied by.
        n_groups, n_groups_used, n_best_of_group : int
            Experts lie in groups, of which the best are used; a group is judged by its one or two
            best experts.
        """
        further = [one if one and self.has(one) else None for one in (correction, bias, factors)]
        while further and further[-1] is None:
            further.pop()
        weights = [weight, *further]
        ids, shares = self.add_node(
            "route",
            [x],
            weights,
            name=name or self._stem(weight),
            n_used=n_used,
            gate=gate,
            normalise=normalise,
            scale=float(scale),
            n_groups=n_groups,
            n_groups_used=n_groups_used,
            n_best_of_group=n_best_of_group,
        )
        return ids, shares

    def expert_matmul(
        self,
        x: Value,
        ids: Value,
        weight: str,
        bias: str | None = None,
        *,
        name: str | None = None,
    ) -> Value:
        """Multiply each row by the matrices of its experts, ``ids``: -> [T, n_used, outputs].

        ``bias`` [experts, outputs] is added; an absent one is left out.
        """
        weights = [weight, bias] if bias and self.has(bias) else [weight]
        return self.add_node("expert_matmul", [x, ids], weights, name=name or self._stem(weight))[0]

    def group_ids(self, ids: Value, n_of_group: int, *, name: str | None = None) -> Value:
        """Return the groups of chosen experts, ``ids // n_of_group``: i32[T, n_used].

        ``ids`` are those that a ``route`` chose. A token whose experts share a group has that group
        several times; the shares are those of the experts.
        """
        return self.add_node("group_ids", [ids], name=name, n_of_group=n_of_group)[0]

    def given_ids(
        self, given: Value, n: int, *, rows: str = TOKENS, name: str | None = None
    ) -> Value:
        """Return the ids that a batch brings, ``n`` for those that are none of 0 .. n - 1.

        They choose among n + 1 matrices.

        Parameters
        ----------
        given : Value
            i32[n_tokens, n_used], an input.
        n : int
        rows : str
            ``n_tokens``, or ``n_outputs``: the rows that are asked for alone.
        """
        return self.add_node("given_ids", [given], name=name, n=n, rows=rows)[0]

    def pair_ids(
        self, first: Value, second: Value, column: int, *, name: str | None = None
    ) -> Value:
        """Pair one id of each row with each of its other ids: i32[T, n_used].

        They choose among all pairs, those with the same first id side by side, and one more, with
        which the last of the first ids is paired whatever the other one.

        Parameters
        ----------
        first, second : Value
            i32[T, ...], ids that ``given_ids`` or ``route`` made.
        column : int
            Which of the first ones.
        """
        n_first, n_second = first.n_experts, second.n_experts
        return self.add_node(
            "pair_ids",
            [first, second],
            name=name,
            column=column,
            n_first=n_first,
            n_second=n_second,
        )[0]

    def token_ids(
        self, tokens: Value, ids: Value, n_rows: int, absent: int = -1, *, name: str | None = None
    ) -> Value:
        """Return which row each token has in the tables that its ids choose: i32[n_tokens, n_used].

        The tables lie one after the other, and one more row after them is that of the last id,
        which chooses none, and of what is no token, unless that has row ``absent``.

        Parameters
        ----------
        tokens, ids : Value
            The batch's, and what ``given_ids`` made.
        n_rows : int
            Of each table.
        absent : int
        """
        return self.add_node(
            "token_ids",
            [tokens, ids],
            name=name,
            n_first=ids.n_experts,
            n_second=n_rows,
            absent=absent,
        )[0]

    def scale_chosen(self, x: Value, ids: Value, weight: str, *, name: str | None = None) -> Value:
        """Multiply each expert's row by the factor of that expert: [T, n_used, width], as it was.

        ``ids`` are those that a ``route`` chose, and ``weight`` [experts] has the factors.
        """
        return self.add_node("scale_chosen", [x, ids], [weight], name=name or self._stem(weight))[0]

    def cluster_matmul(
        self, x: Value, clusters: Value, weight: str, ordering: str, *, name: str | None = None
    ) -> Value:
        """Multiply each row by the rows of a matrix that are in its clusters: -> [T, outputs].

        Outputs of other clusters are -inf.

        Parameters
        ----------
        x : Value
            [T, inputs]
        clusters : Value
            i32[T, n_used], the ids that a ``route`` chose.
        weight, ordering : str
            The matrix [outputs, inputs], and integers [outputs]: the rows of the first cluster,
            then those of the second, as many of each.
        """
        n_clusters = clusters.n_experts
        name = name or self._stem(weight)
        weights = [weight, ordering]
        return self.add_node(
            "cluster_matmul", [x, clusters], weights, name=name, n_clusters=n_clusters
        )[0]

    def mix(self, x: Value, shares: Value, *, name: str | None = None) -> Value:
        """Sum the experts' rows by their weights ``shares``, in rank order: -> [T, outputs]."""
        return self.add_node("mix", [x, shares], name=name)[0]

    def add_chosen(
        self, y: Value, x: Value, ids: Value, shares: Value, *, name: str | None = None
    ) -> Value:
        """Add to each row the sum, in rank order, of what it chose: -> [T, width], as ``y``.

        A row that chose nothing keeps its bits, whatever ``x`` holds.

        Parameters
        ----------
        y : Value
            [T, width]
        x : Value
            [T, n_used, width]
        ids, shares : Value
            i32[T, n_used], made by ``given_ids``, whose last id chooses nothing, and f32[T,
            n_used], the weights of the sum.
        """
        inputs, n = [y, x, ids, shares], ids.n_experts - 1
        return self.add_node("add_chosen", inputs, name=name, n=n)[0]

    def output_rows(self, x: Value, *, name: str | None = None) -> Value:
        """Keep only the tokens whose outputs were asked for."""
        return self.add_node("outputs", [x], name=name)[0]

    def tap(self, tap: str, x: Value) -> Value:
        """Offer a tap; it becomes an output if it was asked for.

        Raises
        ------
        GraphError
            Another value was offered by this name, and it was asked for.
        """
        point = Tap.parse(tap)
        self._offered.append(str(point))
        if point in self._wanted_taps and self._taps.setdefault(str(point), x).id != x.id:
            raise GraphError(f"two taps are called {str(point)!r}", where=self.name)
        return x

    def limit_context(self, n: int, why: str) -> None:
        """Refuse contexts of more than ``n`` places: the graph would compute another model there.

        ``why`` is a clause of the error's text. The smallest of several limits counts.
        """
        self._limit = min((n, why), self._limit or (n, why))

    def finish(self, results: Outputs) -> Program:
        """Check everything and return the program that hands out ``results``.

        Raises
        ------
        GraphError
            The graph does not offer a tap that was asked for, an output is not float32 rows, or a
            rule of the operations is broken.
        """
        missing = sorted(str(t) for t in self._wanted_taps if str(t) not in self._taps)
        if missing:
            raise GraphError(
                "taps that the graph does not offer",
                where=self.name,
                wanted=", ".join(self._offered) or "no taps",
                got=", ".join(missing),
            )
        program = Program(
            self.name,
            values=tuple(self._values),
            nodes=tuple(self._nodes),
            inputs=dict(self._inputs),
            outputs=self._outputs_of(results),
            memory=_in_order(self._memory),
            taps=tuple(dict.fromkeys(self._offered)),
            states=tuple(sorted(self._states.values(), key=lambda s: (s.layer, type(s).__name__))),
            delivered=_in_order(self._delivered),
            shared=_in_order(self._read),
            limit=self._limit,
        )
        if program.shared and (program.memory or program.states):
            raise GraphError(
                "a graph that reads another one's memory has none of its own", where=self.name
            )
        check(program)
        return program

    def _outputs_of(self, results: Outputs) -> dict[str, int]:
        """Return the ids of logits, of other results and of taps, checked, by name."""
        outputs: dict[str, int] = {}
        for name, value in (*results.rows.items(), *self._taps.items()):
            self._check_name(name)
            if outputs.setdefault(name, value.id) != value.id:
                raise GraphError(f"two outputs are called {name!r}", where=self.name)
        if results.logits is not None:
            if len(results.logits.shape) != 2 or results.logits.shape[0] != OUTPUTS:
                raise GraphError(
                    "logits are of output rows only",
                    where=self.name,
                    wanted=f"[{OUTPUTS}, n_vocab]",
                    got=results.logits.shape,
                )
            outputs = {"logits": results.logits.id, **outputs}
        for name, i in outputs.items():
            if self._values[i].dtype != "f32":
                raise GraphError(
                    f"the output {name!r} does not consist of numbers",
                    where=self.name,
                    wanted="f32",
                    got=f"{self._values[i].name}, {self._values[i].dtype}",
                )
            if self._values[i].shape[0] == SOURCES:
                raise GraphError(
                    f"the output {name!r} has rows of another graph",
                    where=self.name,
                    wanted=TOKENS,
                    got=self._values[i].name,
                )
        return outputs

    def _check_name(self, name: str) -> None:
        """Refuse a name of an output that is no tap's, or that of the logits."""
        try:
            Tap.parse(name)
        except PluginError:
            is_one = False
        else:
            is_one = name != "logits"
        if not is_one:
            raise GraphError(
                "no name of an output",
                where=self.name,
                wanted="a word in lower case, as 'hidden', and 'logits' only in Outputs(logits=)",
                got=spell(name),
            )


def _in_order(layers: Mapping[int, MemoryLayer]) -> tuple[MemoryLayer, ...]:
    """Return layers by their numbers."""
    return tuple(layers[number] for number in sorted(layers))
