"""Order, barriers and memory of steps."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from mtpcore._ext._plan import BARRIER_IF_FEW, BARRIER_IF_MANY, HAS_ASAN
from mtpcore.backends.cpu.steps import GROUP, Buffer, ExecutorStep, Sharing
from mtpcore.errors import BackendError

__all__ = ["allocate", "arrange", "copy_bytes", "share_matmuls"]

_LINE = 64
_BARRIERS = (BARRIER_IF_FEW, BARRIER_IF_MANY)
_ALWAYS = BARRIER_IF_FEW | BARRIER_IF_MANY


def arrange(steps: Sequence[ExecutorStep], buffers: Sequence[Buffer]) -> list[ExecutorStep]:
    """Return the steps in an order that needs few barriers, and set those.

    Of the steps whose inputs are made, the first one that waits for nobody is next; only where
    there is none, all threads wait.

    Raises
    ------
    BackendError
        A step reads what no step makes, or what needs its own result: the lowering is wrong.
    """
    waits_for, readers = _dependences(steps, buffers)
    ready = [i for i, others in enumerate(waits_for) if not others]
    touched = [(barrier, _Touched(steps, buffers, barrier)) for barrier in _BARRIERS]
    arranged: list[ExecutorStep] = []
    while ready:
        needed = {i: sum([b for b, since in touched if since.conflicts(i)]) for i in ready}
        # A barrier for many rows alone is better than one for few.
        i = min(ready, key=lambda i: (needed[i] & BARRIER_IF_FEW, needed[i], i))
        step = steps[i]
        step.barrier = needed[i]
        for barrier, since in touched:
            if step.barrier & barrier:
                since.forget()
            since.add(i)
        arranged.append(step)
        ready.remove(i)
        for later in readers[i]:
            waits_for[later].remove(i)
            if not waits_for[later]:
                ready.append(later)
    if len(arranged) < len(steps):
        left = ", ".join(step.kind for step, others in zip(steps, waits_for, strict=True) if others)
        raise BackendError("steps wait for their own results", got=left)
    return arranged


def _dependences(
    steps: Sequence[ExecutorStep], buffers: Sequence[Buffer]
) -> tuple[list[set[int]], list[set[int]]]:
    """Return for each step those whose results it reads, and those that read its own."""
    writers: dict[int, list[int]] = {}
    for i, step in enumerate(steps):
        for buffer in step.writes:
            writers.setdefault(buffer, []).append(i)
    waits_for: list[set[int]] = []
    readers: list[set[int]] = [set() for _ in steps]
    for i, step in enumerate(steps):
        for view in step.inputs:
            if view.buffer not in writers and not buffers[view.buffer].external:
                raise BackendError("a step reads what no step makes", got=f"step {i}, {step.kind}")
        waits_for.append({w for buffer in step.reads for w in writers.get(buffer, ())})
        for w in waits_for[-1]:
            readers[w].add(i)
    return waits_for, readers


class _Touched:
    """What each thread has read and written since the last barrier."""

    def __init__(
        self, steps: Sequence[ExecutorStep], buffers: Sequence[Buffer], barrier: int
    ) -> None:
        is_few = barrier == BARRIER_IF_FEW
        copied = {i for i, buffer in enumerate(buffers) if buffer.copied and is_few}
        self._touching = [_touching(step, copied, is_few) for step in steps]
        self._by_buffer: dict[int, set[tuple[bool, Hashable]]] = {}

    def conflicts(self, i: int) -> bool:
        """Say whether step ``i`` touches what another thread did, and one of them writes."""
        for buffer, writes, owner in self._touching[i]:
            for others_write, other in self._by_buffer.get(buffer, ()):
                if (writes or others_write) and (owner is None or owner != other):
                    return True
        return False

    def add(self, i: int) -> None:
        """Add what step ``i`` touches."""
        for buffer, writes, owner in self._touching[i]:
            self._by_buffer.setdefault(buffer, set()).add((writes, owner))

    def forget(self) -> None:
        """Start again after a barrier."""
        self._by_buffer.clear()


def _touching(
    step: ExecutorStep, copied: set[int], is_few: bool
) -> list[tuple[int, bool, Hashable]]:
    """Return (buffer, writes, how threads divide it); None where any thread may use it."""
    by_rows: Hashable = None
    if step.sharing is Sharing.ROWS and is_few:
        by_rows = "first thread"
    elif step.sharing is Sharing.ROWS or (step.sharing is Sharing.COPIES and not step.gathers):
        by_rows = None if is_few else ("rows", step.axis)
    found: list[tuple[int, bool, Hashable]] = []
    for buffer, writes, columns in step.accesses:
        owner = by_rows
        if step.sharing is Sharing.COLUMNS:
            owner = None if columns is None else (step.n_units, columns)
        if buffer not in copied:
            found.append((buffer, writes, owner))
    return found


def allocate(
    steps: Sequence[ExecutorStep], buffers: Sequence[Buffer], n_threads: int
) -> tuple[list[int | None], int]:
    """Return each buffer's offset in an arena and the arena's bytes.

    Buffers share memory where a barrier stands between their lives, however many rows there are.
    """
    lives: dict[int, tuple[int, int]] = {}
    phase = 0
    for step in steps:
        phase += step.barrier == _ALWAYS
        for buffer in step.reads | step.writes:
            lives[buffer] = (lives.get(buffer, (phase, phase))[0], phase)
    offsets: list[int | None] = [None] * len(buffers)
    placed: list[tuple[int, int, int]] = []  # begin, end, last phase of those still alive
    n_bytes = _LINE
    for buffer in sorted(lives, key=lambda b: lives[b]):
        if buffer >= len(buffers) or buffers[buffer].external:
            continue
        first, last = lives[buffer]
        size = max(buffers[buffer].n_bytes, n_threads * copy_bytes(buffers[buffer]))
        if HAS_ASAN:  # a place of its own, and a line after it that nobody may touch
            first, last, size = 0, phase, size + _LINE
        size = _lines(size)
        at = 0
        placed = [other for other in placed if other[2] >= first]
        for begin, end, _ in sorted(placed):
            if begin < at + size and at < end:
                at = end
        offsets[buffer] = at
        placed.append((at, at + size, last))
        n_bytes = max(n_bytes, at + size)
    return offsets, n_bytes


def copy_bytes(buffer: Buffer) -> int:
    """Return the bytes from one thread's copy to the next's; 0 where there is one for all."""
    return _lines(buffer.few_bytes) if buffer.copied else 0


def _lines(n_bytes: int) -> int:
    """Return a number of bytes as whole cache lines, and one more against false sharing."""
    return -(-n_bytes // _LINE) * _LINE + _LINE


def share_matmuls(steps: Sequence[ExecutorStep]) -> None:
    """Let matmuls without a barrier between them share the threads as one.

    Those whose columns are shared already keep their parts.
    """
    group: list[ExecutorStep] = []

    def close() -> None:
        units = [-(-step.matrices[0].shape[0] // GROUP) for step in group]
        for i, step in enumerate(group):
            step.ints = [sum(units[:i]), sum(units), GROUP]
        group.clear()

    for step in steps:
        if step.barrier:
            close()
        if step.kind == "matmul" and step.sharing is Sharing.COLUMNS:
            step.ints = [0, step.n_units, step.matrices[0].shape[0] // step.n_units]
        elif step.kind == "matmul":
            group.append(step)
    close()
