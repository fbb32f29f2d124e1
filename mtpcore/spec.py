"""Declarations: what trunks and drafters say about themselves; data only, no behaviour.

Plugins fill these structs and mtpcore reads them once, at load. Everything the core must know of
a model or a drafter is a field here; what only the graph knows (the order of a concatenation, the
norms, the block) is a line of its ``build`` function. Imports only ``mtpcore.errors``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from mtpcore.errors import PluginError

__all__ = [
    "Block",
    "DrafterSpec",
    "Feed",
    "Fit",
    "Heads",
    "KVPolicy",
    "Link",
    "ModelSpec",
    "Pairing",
    "Tap",
    "Tie",
    "VocabularyMap",
    "first_of",
]

Pairing = Literal["next-token", "same-token", "none"]
"""Which hidden row meets which token row.

``next-token``: token p with the source's row p - 1 (the row that predicted it).
``same-token``: token p with row p. ``none``: rows without a token (encoders, injected states).
"""


class Tap(msgspec.Struct, frozen=True):
    """A hidden state that a graph hands out: float32[n_tokens, width].

    ``hidden`` is the state after the final norm, ``residual`` the one before it,
    ``layer_input`` with a ``layer`` the residual stream that enters that layer; any other point is
    a name that the graph itself gives. ``Tap.parse`` reads the spelling ``layer_input:3``.
    """

    point: str
    layer: int | None = None

    @classmethod
    def parse(cls, text: str | Tap) -> Tap:
        """Return the tap spelled by ``text``; raise PluginError where it is no spelling."""
        if isinstance(text, Tap):
            return text
        found = re.fullmatch(r"([a-z_][a-z0-9_.]*)(?::(\d+))?", text)
        if not found:
            raise PluginError(
                "not a tap",
                where=repr(text),
                wanted="'hidden', 'residual', 'layer_input:3' or a name the graph gives",
            )
        point, layer = found[1], None if found[2] is None else int(found[2])
        if (point == "layer_input") != (layer is not None):
            raise PluginError("layer_input takes a layer, no other tap does", where=repr(text))
        return cls(point, layer)

    def __str__(self) -> str:
        return self.point if self.layer is None else f"{self.point}:{self.layer}"


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one role's tap feed a slot of another role's graph."""

    src: str
    tap: str
    dst: str
    slot: str
    pairing: Pairing = "next-token"


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """A slot of a drafter's graph and where its rows come from.

    ``taps`` are joined in order along the last axis. ``first`` says what the first entry of a
    sequence gets where the pairing leaves it without a row: no entry at all (the default), a row
    of zeros, or the row itself is kept. ``recycle`` names the graph output that takes the slot's
    place in later draft steps; None where nothing is recycled.
    """

    slot: str
    taps: tuple[str, ...] = ("hidden",)
    pairing: Pairing = "next-token"
    first: Literal["none", "zeros", "kept"] = "none"
    recycle: str | None = None
    evidence: str = ""


class Tie(msgspec.Struct, frozen=True):
    """A weight that may live under several names: the first present one is used.

    ``{n}`` in a name stands for the head's block. ``retype`` lets the borrowed matrix be packed in
    another type for drafting only.
    """

    tensor: str
    candidates: tuple[str, ...]
    retype: str | None = None


def first_of(*names: str) -> Tie:
    """Return the tie whose own name is the first of ``names`` and which falls back in order."""
    return Tie(names[0], names)


class KVPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a drafter remembers.

    ``source``: ``own`` entries; the target's, read only (``shared``, with ``layer_map`` from a
    drafter layer's kind to the target's layer counted from its end); entries ``injected`` from
    hidden states; or ``none``. ``refresh``: positions written while drafting are recomputed from
    the target's true hidden states after verification. ``warm_up``: entries for the whole prompt.
    ``window``: metadata key or number of positions that are kept. ``per_head``: one memory for
    each head instead of a common one.
    """

    source: Literal["own", "shared", "injected", "none"] = "own"
    refresh: bool = True
    warm_up: bool = True
    window: int | str | None = None
    per_head: bool = False
    layer_map: tuple[tuple[str, int], ...] = ()


class Heads(msgspec.Struct, frozen=True, kw_only=True):
    """How many heads there are and which one drafts which step.

    ``count``: a number or the metadata key that holds it. ``order``: one head ``repeated``, a
    head ``each-step`` or all heads at once (``parallel``). ``rereads``: in a later step the head
    reads all rows drafted so far again, because its own memory lacks them. ``hidden_from``: what
    later heads are fed: the ``previous`` step's output or the ``target`` again.
    """

    count: int | str = 1
    order: Literal["repeated", "each-step", "parallel"] = "repeated"
    rereads: bool = False
    hidden_from: Literal["previous", "target"] = "previous"


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a block drafter: slots drafted in one pass.

    ``size`` and ``mask_token`` are numbers or metadata keys. ``anchor_predicts``: whether slot 0
    (the last committed token) already predicts a draft.
    """

    size: int | str
    mask_token: int | str
    causal: bool = False
    anchor_predicts: bool = False


class VocabularyMap(msgspec.Struct, frozen=True, kw_only=True):
    """A reduced draft vocabulary: tensor of target ids by draft id, absolute or as offsets."""

    tensor: str
    values: Literal["absolute", "offset"] = "absolute"
    optional: bool = True


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Which model files a spec fits: by architecture and by the tensors that are there.

    ``tensors`` must all be present; ``{n}`` stands for the first head's block. Presence of tensors
    decides; a metadata key that disagrees is a warning (``count_key`` names it).
    """

    architectures: frozenset[str]
    tensors: tuple[str, ...] = ()
    count_key: str | None = None


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A trunk: which files it fits, its hyper-parameters and its graph.

    ``hparams(fields, tensors)`` returns a struct filled from the metadata and checked; it has at
    least ``n_vocab, width, n_layers`` (of the trunk alone), ``n_drafter_blocks`` and
    ``rotary_axes`` (axes of a position). ``build(g, inputs, hparams)`` returns the graph's outputs.
    """

    name: str
    fit: Fit
    hparams: Callable[..., Any]
    build: Callable[..., Any]
    ties: tuple[Tie, ...] = ()
    min_types: tuple[tuple[str, str], ...] = ()


class DrafterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A drafter: everything the core must know, and its graph.

    ``shape``: ``chain`` (token by token), ``block`` (all slots in one pass), ``tree`` (several
    continuations of one parent) or ``proposer`` (no graph). ``build(g, inputs, hparams)`` returns
    the graph's outputs; it may be None for data-only declarations and proposers. ``limit`` is the
    longest draft that makes sense. ``positions``: drafted rows ``advance`` or all carry the
    ``same`` position. ``acceptance``: the first draft's expected rate (low, high) on ordinary
    text. ``graph_type`` names the graph; further graphs (an encoder of taps) stand in ``graphs``.
    """

    name: str
    fit: Fit
    build: Callable[..., Any] | None = None
    shape: Literal["chain", "block", "tree", "proposer"] = "chain"
    feeds: tuple[Feed, ...] = ()
    ties: tuple[Tie, ...] = ()
    kv: KVPolicy = KVPolicy()
    heads: Heads = Heads()
    block: Block | None = None
    vocabulary: VocabularyMap | None = None
    limit: int = 8
    positions: Literal["advance", "same"] = "advance"
    acceptance: tuple[float, float] = (0.0, 1.0)
    graph_type: str = "draft"
    graphs: tuple[tuple[str, Callable[..., Any]], ...] = ()
    hparams: Callable[..., Any] | None = None
    min_types: tuple[tuple[str, str], ...] = ()
    standalone: bool = False
    evidence: str = ""
