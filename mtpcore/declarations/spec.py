"""Declarations of trunks and drafters, as plain data.

Plugins fill these structs and mtpcore reads them once, at load. Everything the core must know of
a model or a drafter is a field here; what only the graph knows (the order of a concatenation, the
norms, the block) is a line of its ``build`` function.

Where a number may differ from file to file a field also takes the metadata key that holds it: a
plain string is a key that must be there, ``Key`` one with a default. ``{arch}`` in a key stands
for the file's architecture. Contexts and links see the numbers: keys are read once, at load.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Meta

from mtpcore.boundary.arguments import read
from mtpcore.declarations.checkpoint import Checkpoint, Key
from mtpcore.declarations.companion import Companion
from mtpcore.declarations.proposer import FedProposer, Proposer
from mtpcore.errors import PluginError, spell

__all__ = [
    "ATTENTION_SCALES",
    "Block",
    "Codebooks",
    "DrafterSpec",
    "EXPERT_SCALES",
    "FEED_FORWARD_SCALES",
    "Feed",
    "Fit",
    "Heads",
    "Link",
    "ModelSizes",
    "ModelSpec",
    "Noise",
    "Pairing",
    "SHARED_EXPERT_SCALES",
    "SharedMemory",
    "Tap",
    "Tie",
    "TreeShape",
    "Unsupported",
    "as_variant",
    "first_of",
    "read_taps",
]

ATTENTION_SCALES = (
    *("blk.{n}.attn_q", "blk.{n}.attn_k", "blk.{n}.attn_v", "blk.{n}.attn_qkv"),
    *("blk.{n}.attn_output", "output"),
)
"""Matrices of attention, and the output matrix: in llama.cpp's graphs their scales count."""
FEED_FORWARD_SCALES = ("blk.{n}.ffn_gate", "blk.{n}.ffn_up", "blk.{n}.ffn_down")
"""Matrices of a dense feed-forward part, whose scales count in some of its graphs."""
EXPERT_SCALES = ("blk.{n}.ffn_gate_exps", "blk.{n}.ffn_up_exps", "blk.{n}.ffn_down_exps")
"""Experts, likewise."""
SHARED_EXPERT_SCALES = ("blk.{n}.ffn_gate_shexp", "blk.{n}.ffn_up_shexp", "blk.{n}.ffn_down_shexp")
"""Shared experts, likewise."""

Pairing = Literal["next-token", "same-token", "whole-sequence"]
"""Which hidden row meets which token row.

``next-token``: token p with the source's row p - 1 (the row that predicted it); the first token of
a sequence has none, so the head does not read it. ``same-token``: token p with row p.
``whole-sequence``: every token with all rows of the sequence, by cross attention. They are
delivered together, before the first token, and what the graph makes of them alone is kept.
Keys and values are stored at the position of the token, p. Some engines store the same pairs at the
position of the hidden row, which rotates all keys and queries by one step less and so changes no
attention score.
"""


Missing = Literal["refused", "zeros"]
"""What a reader gets in place of a row that its source does not have: an error, or zeros."""


class DrafterSizes(Protocol):
    """The hyper-parameters that every drafter has.

    One in a file of its own may have ``target_width``, the width of the target's taps.
    """

    @property
    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""

    @property
    def width(self) -> int:
        """Values in a row of the residual stream."""


class ModelSizes(DrafterSizes, Protocol):
    """The hyper-parameters that every family has.

    A trunk with an encoder also has ``start_token``. ``rotary_axes``, the axes of a position, are 1
    if they are left out.
    """

    @property
    def n_layers(self) -> int:
        """Layers of the trunk alone."""


Builder = Callable[..., object]
"""A function ``build(g, inputs, hparams)`` that returns a graph's Outputs."""


_TAP = re.compile(r"([a-z_][a-z0-9_.]{0,99})(?::(\d{1,6}))?", re.ASCII)


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
        """Return the tap spelled by ``text``.

        Raises
        ------
        PluginError
            It is no spelling.
        """
        spelled = str(text) if isinstance(text, Tap) and _is_tap(text) else text
        match = _TAP.fullmatch(spelled) if isinstance(spelled, str) else None
        if not match:
            raise PluginError(
                "not a tap",
                where=spell(text),
                wanted="'hidden', 'residual', 'layer_input:3' or a name the graph gives",
            )
        point, layer = match[1], None if match[2] is None else int(match[2])
        if (point == "layer_input") != (layer is not None):
            raise PluginError("layer_input takes a layer, no other tap does", where=spell(text))
        return text if isinstance(text, Tap) else cls(point, layer)

    def __str__(self) -> str:
        return self.point if self.layer is None else f"{self.point}:{self.layer}"


def _is_tap(tap: Tap) -> bool:
    layer = tap.layer
    return isinstance(tap.point, str) and (
        layer is None or (type(layer) is int and 0 <= layer < 10**6)
    )


def read_taps(taps: Sequence[str | Tap] | str) -> tuple[Tap, ...]:
    """Return taps from their spellings, one or several; raise PluginError for an invalid one."""
    if isinstance(taps, (str, Tap)):
        return (Tap.parse(taps),)
    wanted = "a sequence of taps"
    several: list[Any] = read(taps, list[Any], "no taps", wanted=wanted, error=PluginError)
    return tuple(map(Tap.parse, several))


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one role's tap feed a slot of another role's graph.

    Where the source has no row for a token the reader is refused, or reads ``zeros``.
    """

    src: str
    tap: str
    dst: str
    slot: str
    pairing: Pairing = "next-token"
    missing: Missing = "refused"


INPUTS = ("tokens", "positions", "embeddings", "codes", "adapters", "adapter_scales")
"""What graphs read of a batch, whatever feeds them: no slot has such a name, but that a trunk's
further graph may be fed ``embeddings``."""


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """A slot of a graph and where its rows come from.

    ``taps`` are concatenated in order along the last axis; ``layer_input:`` with a metadata key
    instead of a number stands for one tap for each layer listed there. ``src`` has the taps: the
    ``target``, or one of the declaration's own graphs by the name of its type. In a trunk's
    declaration ``target`` is any context that a user links; ``link`` makes the contexts of its own
    graphs. ``graph`` has the slot (empty: the graph that drafts). ``recycle`` names the graph
    output that feeds the slot in later draft steps; None: nothing is recycled. ``mask`` names the
    tensor float[width] that feeds the slot for the mask tokens of a block. ``evidence`` is the
    source for tap and pairing.

    ``missing="zeros"``, of a trunk's slot, is for rows that only some tokens have, as those of an
    image.

    ``width`` is that of the rows that are recycled, where the taps' is another one: of heads for
    each step the first reads rows of the taps, the others rows of this width. Without ``taps`` the
    slot is a state of the drafter's own: zeros in the first step.
    """

    slot: str
    taps: tuple[str, ...] = ("hidden",)
    src: str = "target"
    graph: str = ""
    pairing: Pairing = "next-token"
    missing: Missing = "refused"
    recycle: str | None = None
    width: int | str | Key = 0
    mask: str = ""
    evidence: str = ""


TARGET = "target:"
"""What the name of a tensor in the target's file starts with."""


class Tie(msgspec.Struct, frozen=True):
    """A weight that may have several names: the first one in the file is used.

    ``{n}`` in a name stands for the head's block; a candidate ``target:name`` is in the file of the
    linked target.
    """

    tensor: str
    candidates: tuple[str, ...]


def first_of(*names: str) -> Tie:
    """Return the tie of a weight called by the first of ``names``; the others stand in for it."""
    return Tie(names[0], names)


class Heads(msgspec.Struct, frozen=True, kw_only=True):
    """How many heads there are and which one drafts which step.

    ``count``: where the fit's tensors have ``{n}`` in their names the blocks that are there decide
    and a key that disagrees is a warning. ``order``: one head ``repeated``, or for ``each-step`` a
    head with a memory of its own (a single one is repeated); every head then gets the entries of
    all accepted positions. ``hidden_from``, for a head each step: what later heads are fed, the
    ``previous`` head's output or always the ``target``'s row: head i meets token p with row
    p - 1 - i where the first one meets it with row p - 1. Then nothing is recycled, but by
    the only head of a file, which is repeated.
    """

    count: int | str | Key = 1
    order: Literal["repeated", "each-step"] = "repeated"
    hidden_from: Literal["previous", "target"] = "previous"


_Size: TypeAlias = Annotated[int, Meta(le=1 << 16, description="at most 65536")]


class TreeShape(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a draft tree.

    Either ``paths``, fixed: each the ranks chosen from the root on, as ``(0, 2)`` for the third
    best child of the best child. Or grown: at each of ``depth`` levels the ``width`` best children
    of the ``width`` best nodes, of which the ``n_nodes`` best by probability are verified.
    """

    paths: tuple[tuple[_Size, ...], ...] = ()
    depth: _Size = 0
    width: _Size = 0
    n_nodes: _Size = 0

    @property
    def n_levels(self) -> int:
        """How many drafts come one after the other at most."""
        return max(map(len, self.paths), default=self.depth)

    @property
    def n_branches(self) -> int:
        """How many drafts have others after them, at most, while the tree is made."""
        if not self.paths:
            return self.width * max(self.depth - 1, 0)
        return len({path[:n] for path in self.paths for n in range(1, len(path))})


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens at random in place of one mask token: any place of a text has one of its own.

    They are tokens of the target from ``first`` on, each as likely as another, but for those at the
    end of its vocabulary that are unused. Which one depends on the place alone, so that drafts
    depend on nothing else.
    """

    first: _Size = 0


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """How one pass drafts a block: the pending token and mask tokens, where drafts are to come.

    ``size`` is how many rows a block has at most, the pending token's among them, and ``mask`` the
    token of the others, or Noise where an adapter drafts. Whether rows see each other both ways is
    said by the graph's attention: if so, the pass always has ``size`` rows, else as many as drafts
    are wanted.

    ``from_pending``: each row drafts the token after it, the pending token's row the first one;
    otherwise each mask's row drafts the token in its own place.

    ``entries`` names the further graph that stores keys and values of the tokens before the block,
    made of the target's rows, in the memory of the graph that drafts; without one, that graph reads
    these tokens itself. ``post_head`` names the further graph that chooses the drafts one after the
    other: for each it reads what the drafting graph made of the row, and the token before.

    With ``passes`` the post-head chooses all drafts at once, and does so ``passes`` times: each
    pass has the rows of all drafts, and reads after them what the pass before has chosen, the
    first one what the drafting graph alone would draft. Its rows may see each other, but none
    after their own.
    """

    size: int | str | Key
    mask: int | str | Key | Noise
    from_pending: bool | str | Key = True
    entries: str = ""
    post_head: str = ""
    passes: int | str | Key = 0


class Codebooks(msgspec.Struct, frozen=True, kw_only=True):
    """Codes that a model writes in place of tokens: a frame of them for each row.

    The trunk's logits choose the first code of a frame. The others are chosen one after the other
    by another graph, whose memory begins anew with each frame: at position 0 it reads the trunk's
    row (its ``embeddings``, which a Feed declares), at position p the code before; its logits at
    position p choose code p. The frame is the trunk's next row: ``inputs.codes(count)``.

    Attributes
    ----------
    count : int
        Codes of a frame.
    size : int
        Codes of a codebook, and so logits of the graph that chooses them.
    first_size : int
        Logits of the trunk, and ids that a row may have for its first code, where they are more
        than ``size``: those after the codes are marks, for prompts. None of them is ever chosen
        but ``end``. 0: as many as ``size``.
    graph : str
        The type of the graph that chooses the others, among ``ModelSpec.graphs``.
    end : int, optional
        A frame whose first ``n_end`` codes are all this one ends the text, and is none of it.
    n_end : int
    """

    count: int
    size: int
    first_size: int = 0
    graph: str = "depth"
    end: int | None = None
    n_end: int = 1

    @property
    def n_first(self) -> int:
        """How many ids there are for first codes."""
        return self.first_size or self.size


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Which model files a declaration fits: by architecture and by the tensors they have.

    ``architectures``: empty means all. ``tensors`` must all be present and those of ``absent`` all
    missing; ``{n}`` stands for the first head's block. Presence of tensors decides; a metadata key
    that disagrees is a warning (``count_key`` names it: how many of ``{arch}.block_count`` layers
    are heads). ``targets``: architectures that a standalone drafter was made for (empty: any that
    offers its taps). ``sidecars``, of a drafter: how a file with it alone is called beside a model,
    as ``mtp-*.gguf``, where ``*`` stands for the model's name; upper and lower case are equal.
    """

    architectures: frozenset[str] = frozenset()
    tensors: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    count_key: str | None = None
    targets: frozenset[str] = frozenset()
    sidecars: tuple[str, ...] = ()


class SharedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A drafter's graph reads what the target has stored, and stores nothing itself.

    ``layers(stored, hparams)`` returns for each layer of the drafter the number of the target's
    memory layer that it reads; ``stored`` are the target's, each with ``layer`` (its number),
    ``window``, ``n_heads``, ``k_width`` and ``v_width``, and ``hparams`` the drafter's own. All
    drafts of a round are made at the pending token's position.
    """

    layers: Callable[..., Sequence[int]]


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a trunk: which files it fits, its hyper-parameters and its graph.

    Attributes
    ----------
    name : str
    fit : Fit
    hparams : callable
        ``hparams(fields, tensors)`` returns a struct filled from the metadata and checked; it has
        at least ``n_vocab``, ``width``, ``n_layers`` (of the trunk alone), ``n_drafter_blocks`` and
        ``rotary_axes`` (axes of a position).
    build : callable
        ``build(g, inputs, hparams)`` returns the graph's outputs.
    graphs : tuple of (str, callable)
        Further graphs by the name of their type (an encoder), built alike.
    feeds : tuple of Feed
        Slots that the graphs read, where another context feeds them.
    encoder : str
        The further graph that reads prompts, where it is not ``build``; the hyper-parameters then
        have ``start_token``, with which each text begins.
    ties : tuple of Tie
    codebooks : callable, optional
        ``codebooks(hparams)`` returns the Codebooks of a model that writes codes, no tokens.
    companion : Companion, optional
        The file beside it that holds a part of the model, where files come in two.
    min_types : tuple of (str, str)
        Pattern of tensor names and the smallest type in which ``quantize`` may store them.
    scaled : tuple of str
        Patterns of matrices, without ``.weight``, whose ``.scale`` counts whatever their type, as
        in llama.cpp's graph of the family; beside others it counts where the type is NVFP4.
    unread : tuple of (str, str)
        Pattern of tensors that no graph reads, or with ``{arch}.`` in front of metadata keys that
        ``hparams`` does not ask for, and why files may hold them all the same. ``{n}`` stands for
        a number, ``*`` for anything. What else is left unread is refused.
    checkpoint : Checkpoint, optional
    layouts : tuple of Checkpoint
        Other layouts in which checkpoints of the family are published.
    response_template : str
        How answers are parsed, as JSON of transformers' ``response_template``, where a file has
        none, and its chat template the marks of these calls.
    plugin, version : str
        The plugin that declared it, and the distributions that bring the plugin, with their
        versions; filled in at load.
    """

    name: str
    fit: Fit
    hparams: Callable[..., ModelSizes]
    build: Builder
    graphs: tuple[tuple[str, Builder], ...] = ()
    feeds: tuple[Feed, ...] = ()
    encoder: str = ""
    ties: tuple[Tie, ...] = ()
    codebooks: Callable[..., Codebooks] | None = None
    companion: Companion | None = None
    min_types: tuple[tuple[str, str], ...] = ()
    scaled: tuple[str, ...] = ATTENTION_SCALES
    unread: tuple[tuple[str, str], ...] = ()
    checkpoint: Checkpoint | None = None
    layouts: tuple[Checkpoint, ...] = ()
    response_template: str = ""
    plugin: str = ""
    version: str = ""

    @property
    def full_name(self) -> str:
        """Its name and its plugin's, as errors show them."""
        return _full_name(self.name, self.plugin)


class Unsupported(msgspec.Struct, frozen=True, kw_only=True):
    """An architecture that is known and not run: what errors and tables say of it.

    Attributes
    ----------
    name : str
        ``general.architecture``.
    needs : str
        What is missing here, as in "it needs ...".
    plugin, version : str
        As a ModelSpec's.
    """

    name: str
    needs: str
    plugin: str = ""
    version: str = ""


class DrafterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a drafter: everything that the core must know of it, and its graph.

    Attributes
    ----------
    name : str
    fit : Fit
    build : callable or None
        ``build(g, inputs, hparams)`` returns the outputs of the graph that drafts.
    proposer : callable or None
        For the shape ``proposer``: gets the model, returns a Proposer, or a FedProposer, which
        reads the feeds' rows.
    shape : str
        ``chain`` (token by token), ``tree`` (several continuations of one parent), ``block`` (all
        tokens in one pass) or ``proposer`` (no graph).
    feeds : tuple of Feed
    ties : tuple of Tie
    heads : Heads
    tree : TreeShape, optional
    block : Block, optional
    schedule : callable, optional
        ``schedule(inputs)`` returns the ``Round`` of a ``RoundInput``, where it is not that of the
        shape.
    vocabulary : str
        The tensor int[n] of a reduced draft vocabulary: the target's token id of each logit. A file
        without it drafts all of the target's tokens.
    shared_memory : SharedMemory, optional
        Of a drafter that reads the target's KV cache and has none of its own.
    limit : int
        The longest draft that makes sense, and the most that is asked for. It is at most the number
        of heads, if each drafts one step, or what a block has.
    acceptance : (float, float)
        The first draft's expected rate on ordinary text, low and high.
    variant_of : str
        Another drafter of the plugin, whose head this one feeds in another way, for comparison. A
        variant is used only if a caller names it.
    graphs : tuple of (str, callable)
        Further graphs (a fusion of taps) by the name of their type. Each has a context of its own,
        in the role ``<role of the drafter>_<type of the graph>``.
    hparams : callable, optional
        As a ModelSpec's; what it lacks, the graph's ``h`` takes from the trunk. Default: the
        trunk's. With ``standalone`` there is no trunk: it must also have ``target_width``, the
        width of the target's taps, and ``n_vocab`` counts the target's tokens.
    standalone : bool
        Whether it is a draft model, in its own file with its own architecture.
    adapter : bool
        Whether an adapter of the target drafts (LoRA), whose file is given in place of a draft
        model's: the target's own graph runs a ``block`` of which the rows of masks have the
        adapter, in its own KV cache, where nothing of them stays.
    min_types, unread, checkpoint, layouts, plugin, version
        As a ModelSpec's; ``layouts`` of a drafter in its own file. ``unread`` also names what a
        proposer reads itself.
    fitting : str
        The module that says how such a head is fitted to a target (``mtpcore fit``), where there
        is one. It is imported only then; ``mtpcore.fitting.shape.Shape`` says what it holds.
    evidence : str
        Where the declaration comes from: paper, source, measurement with its size.
    """

    name: str
    fit: Fit
    build: Builder | None = None
    proposer: Callable[..., Proposer | FedProposer] | None = None
    shape: Literal["chain", "tree", "block", "proposer"] = "chain"
    feeds: tuple[Feed, ...] = ()
    ties: tuple[Tie, ...] = ()
    heads: Heads = Heads()
    tree: TreeShape | None = None
    block: Block | None = None
    schedule: Callable[..., object] | None = None
    vocabulary: str = ""
    shared_memory: SharedMemory | None = None
    limit: _Size = 8
    acceptance: tuple[float, float] = (0.0, 1.0)
    variant_of: str = ""
    graphs: tuple[tuple[str, Builder], ...] = ()
    hparams: Callable[..., DrafterSizes] | None = None
    min_types: tuple[tuple[str, str], ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    standalone: bool = False
    adapter: bool = False
    checkpoint: Checkpoint | None = None
    layouts: tuple[Checkpoint, ...] = ()
    plugin: str = ""
    version: str = ""
    fitting: str = ""
    evidence: str = ""

    @property
    def full_name(self) -> str:
        """Its name and its plugin's, as errors show them."""
        return _full_name(self.name, self.plugin)


def _full_name(name: str, plugin: str) -> str:
    return f"{name!r} of plugin {plugin or 'unknown'!r}"


def as_variant(spec: DrafterSpec, name: str, *, evidence: str, **changes: object) -> DrafterSpec:
    """Return a variant: another way to use a drafter's weights, used only if a caller names it.

    Conversion of checkpoints, and the check of the number of heads, stay with the drafter itself.

    Parameters
    ----------
    spec : DrafterSpec
        The drafter.
    name, evidence, **changes
        Fields of the DrafterSpec that differ.
    """
    return msgspec.structs.replace(
        spec,
        name=name,
        variant_of=spec.name,
        fit=msgspec.structs.replace(spec.fit, count_key=None),
        checkpoint=None,
        layouts=(),
        acceptance=(0.0, 1.0),
        evidence=evidence,
        **changes,
    )
