"""Sharing the work of each step among threads.

Threads need not wait for each other between two steps where each one goes on with what it made
itself. Two ways lead there:

- A matmul leaves to each thread the columns that the steps after it want: the sum with the
  residual stream, or activation and quantisation of a feed-forward block, or rotation, memory and
  attention of whole key heads. Steps that hang together in this way cut their columns in the same
  number of parts, the most that suits them all.
- What is cheap and feeds a matmul, such as a norm and its quantisation, is computed by every
  thread for itself while there are few rows.

A layer of 2048 columns with 8 key heads and 8192 columns inside, in Q4_K, on two threads; few rows:

============================  ======================  ============================================
steps                         parts                   because
============================  ======================  ============================================
norm, prepare                 a copy for each thread  they are cheap
q, k, v                       8 of 256, 64, 64        as many as there are key heads
rope, remember, attention,    8, a key head each      each thread has made these heads
prepare
*all wait for each other*                             the next matmul reads all heads
output matrix, add            64 of 32                kernels compute 32 columns together
*all wait for each other*                             the norm reads all columns
norm, prepare                 a copy for each thread
gate, up                      32 of 256               codes of 256 columns share a scale
gated, prepare                the same 32             each thread has made these columns
*all wait for each other*                             the next matmul reads all columns
down, add                     64 of 32
*all wait for each other*                             the next layer's norm reads all columns
============================  ======================  ============================================

``arrangement.py`` finds where they wait, by what each step reads and writes (``accesses``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

from mtpcore._ext._matmul import activation_block
from mtpcore.backends.cpu.steps import GROUP, Access, Buffer, ExecutorStep, Sharing, View

__all__ = ["nanoseconds", "share_out"]

BARRIER_NS = 2000.0
"""What a barrier costs, roughly: no longer may threads wait for the one with the largest part."""

_BYTES_PER_NS = 40.0  # of weights in its caches that one thread multiplies with
_LANES = 16  # values of a cache line, which two threads should not share
_EACH_VALUE = {"add", "mul", "scale", "clamp", "scale_by", "shift_by", "activation", "gated"}
_EACH_VALUE |= {"xielu", "copy", "take", "block_mean", "block_mix"}
_EACH_HEAD = {"rms_norm", "l2_norm", "layer_norm", "rope", "mul_heads", "scale_by_position"}
_EACH_HEAD |= {"gaussian_topk"}
_MATMULS = {"matmul", "expert_matmul"}


def share_out(
    steps: Sequence[ExecutorStep], buffers: Sequence[Buffer], n_threads: int
) -> list[ExecutorStep]:
    """Set how each step is shared, and of which buffers every thread has a copy.

    Returns
    -------
    list of ExecutorStep
        All but those that take shared ranges of attention together where there are none.
    """
    _share_columns(steps, n_threads)
    needed = _without_merges(steps)
    _make_copies(needed, buffers)
    return needed


def _without_merges(steps: Sequence[ExecutorStep]) -> list[ExecutorStep]:
    """Leave out the merges of attention whose key heads belong to threads, ranges and all."""
    unused = set()
    for step in steps:
        if step.kind == "attention" and step.sharing is Sharing.COLUMNS:
            unused |= {view.buffer for view in step.outputs[1:]}
            step.outputs, step.writes = step.outputs[:1], {step.outputs[0].buffer}
            # One thread has all of a key head: it sums over all ranges itself, and nobody merges.
            step.ints = [*step.ints[:5], 1, *step.ints[6:]]
    return [step for step in steps if step.kind != "merge" or not step.reads & unused]


class _Cut(NamedTuple):
    """The most parts in which a step can be cut by columns, and which it then accesses."""

    most: int
    accesses: list[Access]


class _Cluster:
    """Steps that are cut in the same number of parts."""

    def __init__(self, n_units: int) -> None:
        self.n_units = n_units
        self.members: list[tuple[ExecutorStep, _Cut]] = []
        self._joined: _Cluster | None = None  # the one that took this one's members

    @property
    def whole(self) -> _Cluster:
        """The cluster that holds the members now."""
        return self if self._joined is None else self._joined.whole

    def wastes(self, n_units: int, n_threads: int) -> bool:
        """Say whether threads would wait too long in a matmul that is cut in ``n_units`` parts."""
        if n_units == self.n_units or n_units % n_threads == 0:  # no larger parts, or equal ones
            return False
        largest = -(-n_units // n_threads) / n_units
        return any(
            nanoseconds(step) * (largest - _largest_alone(step, cut, n_threads)) > BARRIER_NS
            for step, cut in self.members
            if step.kind in _MATMULS
        )

    def join(self, other: _Cluster) -> None:
        """Take the members of another cluster."""
        if other is not self:
            self.members += other.members
            other._joined = self


def nanoseconds(matmul: ExecutorStep) -> float:
    """Estimate how long one thread multiplies: for any batch; of experts, for each row."""
    return matmul.outputs[0].n_heads * matmul.matrices[0].nbytes / _BYTES_PER_NS


def _largest_alone(matmul: ExecutorStep, cut: _Cut, n_threads: int) -> float:
    """Return the busiest thread's part of a matmul that is cut for itself."""
    n = cut.most * matmul.outputs[0].n_heads
    return -(-n // n_threads) / n


def _share_columns(steps: Sequence[ExecutorStep], n_threads: int) -> None:
    # Attention and its merge write one value; where attention is cut by columns, there is no merge.
    makers_of_values = (step for step in steps if step.kind != "merge")
    n_writers = Counter(buffer for step in makers_of_values for buffer in step.writes)
    makers: dict[Access, _Cluster] = {}  # by what they leave to readers
    for step in steps:
        cut = _cut_of(step)
        # Of a value that several steps write a part of, no single one is the maker.
        if cut is None or any(n_writers[buffer] > 1 for buffer in step.writes):
            continue
        if step.kind in _MATMULS:  # which reads whole rows, so that it waits for all threads anyhow
            cluster = _Cluster(cut.most)
        else:
            sources = [makers[access].whole for access in cut.accesses if access in makers]
            # So that a part is a whole number of parts of each: heads, blocks of codes, ...
            n_units = gcd(cut.most, *(source.n_units for source in sources))
            if not sources or any(source.wastes(n_units, n_threads) for source in sources):
                continue
            cluster = max(sources, key=lambda source: len(source.members))
            for source in sources:
                cluster.join(source)
            cluster.n_units = n_units
        cluster.members.append((step, cut))
        for access in cut.accesses:
            if access.writes:
                makers[access._replace(writes=False)] = cluster
    for cluster in {id(maker.whole): maker.whole for maker in makers.values()}.values():
        if len(cluster.members) > 1:  # a matmul for itself is cut more evenly (`share_matmuls`)
            for step, cut in cluster.members:
                step.sharing, step.n_units = Sharing.COLUMNS, cluster.n_units
                step.accesses = cut.accesses


def _cut_of(step: ExecutorStep) -> _Cut | None:
    """Return how a step can be shared by columns, if at all.

    ===========================  =================================  ================================
    steps                        cut between                        because
    ===========================  =================================  ================================
    matmuls                      ``GROUP`` outputs                  a kernel computes them together
    of each value or rank        ``_LANES`` values                  two threads write no cache line
    prepare                      blocks of codes                    they share a scale
    norms, rope, factors         heads                              a head is read as a whole
    remember, attention          key heads                          queries of one share its keys
    ===========================  =================================  ================================

    Inputs that are no rows of these columns, such as angles or the shares of experts, are read as a
    whole.
    """
    ins, outs = step.inputs, step.outputs
    if step.kind in _MATMULS:
        n_outputs = step.matrices[0].shape[0]
        if n_outputs % GROUP:
            return None
        return _Cut(n_outputs // GROUP, [*_read_whole(ins), _by_width(outs[0], True)])
    if step.kind in _EACH_VALUE and outs[0].width % _LANES == 0:
        write = _by_width(outs[0], True)
        return _Cut(outs[0].width // _LANES, [*map(_by_width, ins), write])
    if step.kind in ("mix", "scale_chosen") and outs[0].width % _LANES == 0:
        reads = [_by_width(ins[0]), Access(ins[1].buffer, False)]
        return _Cut(outs[0].width // _LANES, [*reads, _by_width(outs[0], True)])
    if step.kind == "add_chosen" and outs[0].width % _LANES == 0:
        reads = [*map(_by_width, ins[:2]), *_read_whole(ins[2:])]
        return _Cut(outs[0].width // _LANES, [*reads, _by_width(outs[0], True)])
    if step.kind in ("prepare", "prepare_by_expert"):
        kind = step.ints[0] if step.kind == "prepare" else step.ints[1]
        block = max(activation_block(kind), _LANES)
        if ins[0].width % block:
            return None
        write = Access(outs[0].buffer, True, "prepared")
        return _Cut(ins[0].width // block, [_by_width(ins[0]), *_read_whole(ins[1:]), write])
    if step.kind in _EACH_HEAD and outs[0].n_heads > 1:
        write = _by_head(outs[0], True)
        return _Cut(outs[0].n_heads, [_by_head(ins[0]), *_read_whole(ins[1:]), write])
    if step.kind == "remember" and len({view.n_heads for view in ins}) == 1 < ins[0].n_heads:
        stored = [Access(layer, True, "memory") for layer in step.writes]
        return _Cut(ins[0].n_heads, [*map(_by_head, ins), *stored])
    if step.kind == "attention" and step.ints[2] > 1:
        stored = [Access(layer, False, "memory") for layer in step.reads - {ins[0].buffer}]
        return _Cut(step.ints[2], [_by_head(ins[0]), *stored, _by_head(outs[0], True)])
    return None


def _read_whole(views: Sequence[View]) -> list[Access]:
    return [Access(view.buffer, False) for view in views]


def _by_width(view: View, writes: bool = False) -> Access:
    """Cut each head's width, so that a thread has its part of all heads."""
    # The stride of a single head means nothing, and equal cuts are told by equal views.
    if view.n_heads == 1 and view.head_stride != view.width:
        view = view._replace(head_stride=view.width)
    return Access(view.buffer, writes, view)


def _by_head(view: View, writes: bool = False) -> Access:
    """Cut between heads; where they follow each other, that cuts the row's whole width."""
    if not view.has_contiguous_heads:
        return Access(view.buffer, writes)
    width = view.n_heads * view.width
    return _by_width(view._replace(n_heads=1, width=width), writes)


def _make_copies(steps: Sequence[ExecutorStep], buffers: Sequence[Buffer]) -> None:
    """Let every thread have its copy of what steps on rows make for other steps.

    While rows are few they are all the first thread's: the others would wait for it, and then read
    its cache. What each of them computes for itself takes as long, and nobody waits.
    """
    candidates = [step for step in steps if _can_copy(step, buffers)]
    shared = {buffer for step in steps if not _can_copy(step, buffers) for buffer in step.writes}
    n_before = -1
    while len(shared) != n_before:  # a step has all its outputs in copies, or none
        n_before = len(shared)
        for step in candidates:
            if step.writes & shared:
                shared |= step.writes
    for step in candidates:
        if not step.writes & shared:
            step.sharing = Sharing.COPIES
            for buffer in step.writes:
                buffers[buffer].copied = True


def _can_copy(step: ExecutorStep, buffers: Sequence[Buffer]) -> bool:
    """Say whether threads may all compute a step; memory, and the caller's arrays, are one each."""
    return (
        step.sharing in (Sharing.ROWS, Sharing.GATHER)
        and step.kind != "remember"
        and not any(buffers[buffer].external for buffer in step.writes)
    )
