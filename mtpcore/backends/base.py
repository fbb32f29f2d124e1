"""The protocols of backends: they lower a Program to a Plan, and store pages of the KV cache.

The protocols here are all that contexts know of a backend. Arrays in ``CheckedBatch`` are
checked before a plan sees them: ids, positions, places and parents are in range, and the arrays are
C-contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import Sampler
from mtpcore.errors import BatchError
from mtpcore.graph.program import MemoryLayer, Program, StateLayer
from mtpcore.memory.base import PAGE, Memory, StateStore, Store

__all__ = [
    "PAGE",
    "Backend",
    "FusedSampling",
    "DraftPass",
    "DraftRun",
    "Plan",
    "GrownTree",
    "PENDING",
    "PostHead",
    "RowBuffer",
    "CheckedBatch",
    "codes_of",
    "StateStore",
    "Store",
    "TreeBranch",
    "TreeNode",
    "TreePass",
    "TreeRun",
    "Verification",
    "WeightSource",
    "WeightTensor",
]

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


CHOSEN: Final = "chosen token"
"""The name of what fused sampling makes; outputs of a graph are words, and so have other names."""


ChangeLogits = Callable[[I32, F32, I32 | None], F32]
"""``change(tokens, logits, token_ids)`` returns the logits float32[n_logits] from which the token
after int32[n] ``tokens`` is chosen."""


class FusedSampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are sampled while their logits are computed: one entry for each of m outputs.

    For output i ``samplers[i]``, whose ``is_gumbel_max`` is true, samples the token with index
    ``indices[i]`` in its sequence. Where the sampler is None the logits are wanted instead, and
    the index is ignored. ``token_ids`` int32[n_logits] names the token of each logit where that
    is not its index.

    With ``texts`` samplers may have bias, penalties and cuts as well: ``texts[i]`` int32[n] are the
    tokens before that of output i, ``n_prompt[i]`` of them the prompt.
    """

    samplers: Sequence[Sampler | None]
    indices: Sequence[int]
    token_ids: I32 | None = None
    texts: Sequence[I32] = ()
    n_prompt: Sequence[int] = ()

    def part(self, begin: int, end: int) -> FusedSampling:
        """Return the samplers of outputs ``begin`` to ``end``."""
        names = ("samplers", "indices", "texts", "n_prompt")
        parts = {name: getattr(self, name)[begin:end] for name in names}
        return msgspec.structs.replace(self, **parts)


class CheckedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A checked batch of n rows, as plans read it.

    Rows of one sequence come in the order of their places.

    Attributes
    ----------
    tokens : int32[n]
        -1 where ``embeddings`` hold the row.
    positions : int32[n, axes]
        By which queries and keys are rotated.
    seq : int32[n]
        The sequence of each row.
    place : int32[n]
        The index in the sequence at which a row is stored. In a chain it attends to the sequence's
        rows from the first one to this place.
    outputs : int32[m]
        The rows whose logits are wanted, ascending.
    parent : int32[n], optional
        In a draft tree, the row (index in this batch) that a row follows; -1: what is stored.
    until : int32[n], optional
        Where attention has the mask ``spans``, the place behind the last one that a row sees.
    embeddings : float32[n, width], optional
    codes : int32[n, n_codes], optional
        -1 where a row has none; given where the program reads codes.
    slots : mapping of str to float32[n, width]
    fused_sampling : FusedSampling, optional
        Outputs with a sampler return a token in place of their logits.
    """

    tokens: I32
    positions: I32
    seq: I32
    place: I32
    outputs: I32
    parent: I32 | None = None
    until: I32 | None = None
    embeddings: F32 | None = None
    codes: I32 | None = None
    slots: Mapping[str, F32] = {}
    fused_sampling: FusedSampling | None = None


def codes_of(batch: CheckedBatch, program: Program) -> I32:
    """Return the codes of a batch, int32[n, n_codes].

    Raises
    ------
    BatchError
        They are not those that the program reads.
    """
    wanted, codes = (len(batch.tokens), program.n_codes), batch.codes
    if codes is None or codes.shape != wanted or codes.dtype != np.int32:
        raise BatchError(
            "codes do not fit",
            where=program.name,
            wanted=f"int32{list(wanted)}",
            got=None if codes is None else f"{codes.dtype}{list(codes.shape)}",
        )
    return codes


class DraftPass(msgspec.Struct, frozen=True):
    """A pass of a draft run with a plan and a memory of its own, for one head of several."""

    plan: Plan
    memory: Memory | None
    batch: CheckedBatch


class Verification(msgspec.Struct, kw_only=True):
    """The target's pass over what a draft run makes, which a plan may run behind it in one go.

    ``batch`` has of the run's sequence i, from row ``first[i]`` on, the pending token and its
    drafts, whose tokens are filled in, in the texts before its choices, too; its places are
    reserved in ``memory``. ``arrays`` are what ``plan.run`` returns of it, if it was run: not where
    a draft is missing.
    """

    plan: Plan
    memory: Memory | None
    batch: CheckedBatch
    first: Sequence[int]
    arrays: dict[str, NDArray[Any]] | None = None


class PostHead(msgspec.Struct, frozen=True, kw_only=True):
    """A graph behind a block that chooses its drafts, each row behind the token before its own.

    Row r of ``batch`` belongs to output r of the block, and ``feeds[slot]`` names the block's
    outputs whose rows, side by side, feed a slot there. The last ``k[i]`` rows of sequence i are
    outputs and choose its drafts; the row of any but the first draft has the draft before it as its
    token, which is filled in. A draft needs that what feeds its sequence's rows, up to its own, is
    finite.

    Without ``passes`` all rows are outputs, and those of a sequence run one after the other, each
    as soon as its token is chosen. With ``passes`` all rows run together, so often at most: first
    behind the drafts that the block's own logits choose, then behind those of the pass before,
    until none changes. ``p_min`` is asked of the last choice alone. A token without an embedding in
    ``plan`` is the last draft of its sequence; in passes before the last, token 0 stands for it.

    Places of all rows are reserved beforehand, and may be written in every pass.
    """

    plan: Plan
    memory: Memory | None
    batch: CheckedBatch
    feeds: Mapping[str, Sequence[str]]
    passes: int = 0


class DraftRun(msgspec.Struct, frozen=True, kw_only=True):
    """Draft tokens of m sequences, chosen one after the other without returning in between.

    The first pass runs ``batch``; ``batch.outputs`` are the newest rows of the m sequences, and
    each chooses its sequence's first draft. Every further pass has one row for each sequence that
    goes on: the token just chosen, at the next place and positions (``in_place``: at the same),
    with ``recycle[slot]``, an output of the pass before, as its slots.

    With ``later`` the further passes are these instead. Pass p has the sequences that want more
    than p drafts, in the same order, each with all of its rows together. The newest p of them, or
    as many as there are, stand for the newest of its first p drafts: their tokens, and recycled
    slots (outputs of the pass that made the draft), take the place of what is there. A sequence
    that ended before stays, with any values.

    With ``is_block`` there is the first pass alone: ``batch.outputs`` are ``k[i]`` rows of each
    sequence i, one sequence after the other, and each row chooses a draft behind those before it.
    Drafts end at a row with NaN where its logits are read for more than the fused choice. Where a
    ``post_head`` chooses instead, outputs are the rows that it reads.

    ``samplers`` (m) share one scratch. ``history[i]`` int32[n] are the tokens that sequence i's
    penalties read, ``n_prompt[i]`` of them its prompt; the token chosen after them has index
    ``index[i]``, or n where no indices are given.
    At most ``k[i]`` drafts are made; one that is less probable than ``p_min[i]`` is dropped and
    ends them, and so does a recycled row that is not finite, a token without an embedding, or a row
    that leaves no token to choose. ``token_ids`` int32[n_logits] names the token of each logit, if
    that is not its index.

    ``processors[i]``, where there are any, changes the logits of sequence i before they choose: the
    host is asked between passes.

    A ``verification`` may be run, too.

    Places up to ``k[i] - 1`` after the newest row, or those of the later passes' rows, are reserved
    beforehand and may be written.
    """

    batch: CheckedBatch
    samplers: Sequence[Sampler]
    history: Sequence[I32]
    n_prompt: Sequence[int]
    k: Sequence[int]
    p_min: Sequence[float]
    processors: Sequence[ChangeLogits | None] = ()
    index: Sequence[int] = ()
    recycle: Mapping[str, str] = {}
    token_ids: I32 | None = None
    later: Sequence[DraftPass] = ()
    verification: Verification | None = None
    in_place: bool = False
    is_block: bool = False
    post_head: PostHead | None = None

    @property
    def indices(self) -> list[int]:
        """The index of each sequence's first draft."""
        return [*self.index] or [len(history) for history in self.history]

    def processor(self, i: int) -> ChangeLogits | None:
        """Return what changes the logits of sequence i, if anything does."""
        return self.processors[i] if self.processors else None

    @property
    def takes_host(self) -> bool:
        """Whether anything but plans has a part in it: then it runs pass by pass."""
        return any(self.processors)


PENDING = -2
"""The pending token, where another branch is a node."""


class TreeBranch(NamedTuple):
    """What gets children: the pending token of a sequence, or a node ``depth`` levels below it.

    ``node`` is its number; None where the run chooses one of the nodes of that depth.
    """

    sequence: int
    depth: int
    node: int | None


class TreeNode(NamedTuple):
    """A node that may grow: the branch that it is a child of, and its rank there."""

    branch: int
    rank: int


class TreePass(NamedTuple):
    """A pass of a tree run; it gives the branches of its depth their children.

    Row i of the batch stands for branch ``rows[i]``: its token and recycled slots take the place of
    what is there; -1: the row is known. The children of its branch i are ranked from the logits of
    ``batch.outputs[outputs[i]]``.
    """

    plan: Plan
    memory: Memory | None
    batch: CheckedBatch
    rows: Sequence[int]
    outputs: Sequence[int]


class TreeRun(msgspec.Struct, frozen=True, kw_only=True):
    """Draft trees of m sequences, level by level without returning in between.

    Pass p ranks the children of the branches of depth p, as ``Sampler.rank`` does, after the
    sequence's ``history`` and the branch's path. ``nodes`` come by branch, and these by depth. A
    node is there if its rank exists, if none on its way is less probable than
    ``p_min[i]``, and if all above it were run: those with a token from ``n_tokens`` on (0: none) or
    a recycled row that is not finite are not.

    Of a fixed tree branches are known, and ``order[i]`` has the nodes of sequence i in the order in
    which they are verified. With a ``width`` the branches of each depth of a sequence are its best
    nodes there, in their order, and as many as ``order[i]`` has, the best of all, are verified: by
    the product of shares on their way, of equal ones the first. Rows of a pass are then those of
    all branches above, by depth, where there is a memory, and their parents are filled in.

    Each choice of ``batch.outputs``, ``samplers``, ``token_ids``, ``recycle`` and ``verification``
    is as in ``DraftRun``. What is verified comes in the order of the tree.
    """

    passes: Sequence[TreePass]
    branches: Sequence[TreeBranch]
    nodes: Sequence[TreeNode]
    order: Sequence[Sequence[int]]
    samplers: Sequence[Sampler]
    history: Sequence[I32]
    n_prompt: Sequence[int]
    p_min: Sequence[float]
    n_tokens: int = 0
    width: int = 0
    recycle: Mapping[str, str] = {}
    token_ids: I32 | None = None
    verification: Verification | None = None


class GrownTree(NamedTuple):
    """The tree of a sequence: its tokens, and the node before each, -1 for the pending token.

    ``is_finite`` says whether the rows were that its nodes would be run with.
    """

    tokens: list[int]
    parent: list[int]
    is_finite: bool


class WeightTensor(Protocol):
    """A tensor of a model file; shapes are in NumPy order, ``type`` is GGUF's number."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, outermost axis first."""

    @property
    def type(self) -> int:
        """The GGUF type number."""

    @property
    def offset(self) -> int | None:
        """Where its bytes begin in a file that is mapped as a whole; None where they are a copy."""

    def raw(self) -> NDArray[np.uint8]:
        """Return the mapped bytes, uint8[n_bytes]."""

    def array(self) -> F32:
        """Return the values, float32[shape]."""

    def native(self, native_types: Collection[int]) -> tuple[int, NDArray[np.uint8]]:
        """Return (type, uint8[*shape[:-1], row bytes]); F32 is among the ``native_types``."""

    def rows(self, begin: int, end: int) -> F32:
        """Return values of rows, float32[end - begin, shape[-1]]; all outer axes count rows."""

    def release(self, begin: int, end: int) -> None:
        """Let the system reclaim the pages of rows [begin, end)."""

    def stream(
        self,
        native_types: Collection[int],
        ranges: Iterable[tuple[int, int]],
        start: Callable[[int], Callable[[int, NDArray[np.uint8]], None]],
    ) -> None:
        """Hand over ranges of rows in one of the ``native_types``, F32 among them; release them.

        ``start`` gets the type and returns what takes the first row and uint8[rows, row bytes];
        it may be called once more, with another type.
        """


class WeightSource(Protocol):
    """A model as backends see it: its tensors, and a table of the weights that they packed.

    ``packed`` holds packed weights by (backend, layout, *tensors), so that contexts share them.
    """

    @property
    def repack(self) -> bool:
        """Whether weights may be copied into another layout; else they stay in the file."""

    @property
    def tensors(self) -> Mapping[str, WeightTensor]:
        """Tensors by name."""

    @property
    def packed(self) -> MutableMapping[Any, Any]:
        """Packed weights, owned by the model."""


class Plan(Protocol):
    """A program ready to run on a backend."""

    program: Program

    @property
    def progress(self) -> float:
        """Share of the running batch that is done, 0 .. 1; 0 if none runs or it is not measured."""

    @property
    def bytes_to_pack(self) -> int:
        """Bytes of weights that are still to be packed behind runs; other threads may ask."""

    @property
    def is_warm(self) -> bool:
        """Whether the last run took no longer than such runs will: it tried out nothing."""

    @property
    def chooses_after_texts(self) -> bool:
        """Whether it chooses itself where fused sampling has ``texts``; else it is not told."""

    def prepare(self) -> None:
        """Pack at once all weights that are to be packed behind runs."""

    def run(self, batch: CheckedBatch, memory: Memory | None) -> dict[str, NDArray[Any]]:
        """Run all rows (at most ``n_batch``) and return new arrays by output name.

        ``logits`` is float32[n_outputs, n_vocab]; every other output float32[n, width]. Where the
        batch comes with ``fused_sampling``, the plan may add ``CHOSEN`` int32[n_outputs], -1 for
        those without a sampler, ``NO_TOKEN`` where no token was left to choose; ``logits`` are then
        of those without one alone. The places of all rows
        are reserved in ``memory`` beforehand.

        A plan on a device may return arrays of its own kind: with a shape, a length, slices of
        rows, ``__array__``, which copies to the host, and ``find_not_finite``, which returns the
        rows that hold NaN or infinity, there or in other arrays beside them.
        """

    def joins(self, plan: Plan) -> bool:
        """Whether a draft run here can end with a run of that plan; see ``Verification``.

        Places may be reserved for that run, and given back, without it.
        """

    def draft(self, run: DraftRun, memory: Memory | None) -> tuple[list[list[int]], int]:
        """Return the drafts of each sequence, and how many passes ran; their outputs are not kept.

        A pass runs only if some sequence goes on to it. The caller takes back what they write to
        ``memory``.
        """

    @property
    def grows_trees(self) -> bool:
        """Whether ``grow`` may be worth a try."""

    def grow(self, run: TreeRun) -> list[GrownTree] | None:
        """Return the tree of each sequence; None where it is left to the caller: nothing was run.

        The caller takes back what it writes to memories.
        """


class RowBuffer(Protocol):
    """Rows of one width that wait between two graphs, where the reader's backend keeps them."""

    def __len__(self) -> int: ...

    def write(self, at: int, parts: Sequence[F32]) -> None:
        """Store rows from row ``at`` on; of several parts, float32[n, *], each fills its columns.

        Parts are outputs of a plan, of this backend or another one, or arrays of a caller.
        """

    def read(self, begin: int, end: int) -> F32:
        """Return float32[end - begin, width], a copy for the slots of a plan of this backend."""


class Backend(Protocol):
    """Lowers programs; one object for each kind of device."""

    name: str
    guarantee: str
    packs_behind_runs: bool
    """Whether plans run before all weights are packed; else the first run packs what is left."""

    def store(self, layers: Sequence[MemoryLayer], n_pages: int, dtype: str) -> Store:
        """Make ``n_pages`` pages for these memory layers; ``dtype`` is one of ``KV_DTYPES``."""

    def state_store(self, layers: Sequence[StateLayer], n_slots: int) -> StateStore:
        """Make ``n_slots`` slots for the states of these recurrent layers, and their logs."""

    def row_buffer(self, n_rows: int, width: int) -> RowBuffer:
        """Make room for rows [n_rows, width] that wait for a plan; their values are undefined."""

    def plan(
        self,
        program: Program,
        source: WeightSource,
        *,
        n_batch: int,
        n_ctx: int,
        threads: int,
        stores: Sequence[Store],
        states: StateStore | None = None,
    ) -> Plan:
        """Lower a program for batches of at most ``n_batch`` rows and places below ``n_ctx``.

        Weights come from ``source``; the plan computes with ``threads`` threads. ``stores`` hold
        the pages of the program's memory layers, one for each of the ``groups`` of the memory that
        the plan will run with; ``states`` holds those of its recurrent layers.
        """
