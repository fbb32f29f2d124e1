"""Order, memory and barriers of steps.

Steps on rows need no barrier between them; steps spread over all threads need one before and
after. So steps are reordered into phases of one kind, as few as their dependences allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from mtpcore._ext._plan import BARRIER, BARRIER_IF_MANY, NO_BARRIER
from mtpcore.backends.cpu.steps import Buffer, Pattern, Step

__all__ = ["allocate", "phases_of", "set_barriers", "share_products"]

_LINE = 64


def phases_of(steps: Sequence[Step]) -> list[list[Step]]:
    """Return the steps in phases: on rows (in dependence order), or spread (independent)."""
    writers: dict[int, list[int]] = {}
    for i, step in enumerate(steps):
        for buffer in step.writes:
            writers.setdefault(buffer, []).append(i)
    missing: list[int] = []  # how many steps each one waits for
    waited_by: list[list[int]] = [[] for _ in steps]
    on_rows: list[int] = []  # steps that wait for nothing, as heaps
    spread: list[int] = []

    def add(i: int) -> None:
        heappush(spread if steps[i].pattern is Pattern.SPREAD else on_rows, i)

    def finish(i: int) -> None:
        for later in waited_by[i]:
            missing[later] -= 1
            if missing[later] == 0:
                add(later)

    for i, step in enumerate(steps):
        needed = {w for buffer in step.reads for w in writers.get(buffer, ())}
        missing.append(len(needed))
        for w in needed:
            waited_by[w].append(i)
        if not needed:
            add(i)
    phases: list[list[Step]] = []
    while on_rows or spread:
        phase = []
        while on_rows:
            phase.append(heappop(on_rows))
            finish(phase[-1])
        together = sorted(spread)
        spread.clear()
        for i in together:
            finish(i)
        phases += [[steps[i] for i in found] for found in (phase, together) if found]
    return phases


def allocate(
    phases: Sequence[Sequence[Step]], buffers: Sequence[Buffer]
) -> tuple[list[int | None], int]:
    """Return each buffer's offset in an arena and the arena's bytes.

    Buffers share memory where their lives, counted in phases, do not meet.
    """
    lives: dict[int, tuple[int, int]] = {}
    for i, phase in enumerate(phases):
        for step in phase:
            for buffer in step.reads | step.writes:
                lives[buffer] = (lives.get(buffer, (i, i))[0], i)
    offsets: list[int | None] = [None] * len(buffers)
    placed: list[tuple[int, int, int]] = []  # begin, end, last phase of those still alive
    n_bytes = _LINE
    for buffer in sorted(lives, key=lambda b: lives[b]):
        if buffer >= len(buffers) or buffers[buffer].external:
            continue
        first, last = lives[buffer]
        size = -(-buffers[buffer].n_bytes // _LINE) * _LINE + _LINE
        at = 0
        placed = [other for other in placed if other[2] >= first]
        for begin, end, _ in sorted(placed):
            if begin < at + size and at < end:
                at = end
        offsets[buffer] = at
        placed.append((at, at + size, last))
        n_bytes = max(n_bytes, at + size)
    return offsets, n_bytes


def set_barriers(
    steps: Sequence[Step], buffers: Sequence[Buffer], offsets: Sequence[int | None]
) -> None:
    """Decide what each step waits for: whatever shares memory with an earlier one."""

    def overlap(a: int, b: int) -> bool:
        if a == b:
            return True
        x, y = (offsets[i] if i < len(offsets) else None for i in (a, b))
        return (
            x is not None
            and y is not None
            and x < y + buffers[b].n_bytes
            and y < x + buffers[a].n_bytes
        )

    def conflict(a: Step, b: Step) -> int:
        shared = [
            x == y and a.axis == b.axis
            for mine, others in ((a.writes, b.reads | b.writes), (a.reads, b.writes))
            for x in mine
            for y in others
            if overlap(x, y)
        ]
        if not shared:
            return NO_BARRIER
        if Pattern.SPREAD in (a.pattern, b.pattern):
            return BARRIER
        if a.pattern is b.pattern is Pattern.ROWS and all(shared):
            return NO_BARRIER
        return BARRIER_IF_MANY

    since: list[tuple[Step, bool]] = []  # steps since the last barrier; whether a weak one followed
    for step in steps:
        needed = NO_BARRIER
        for other, separated in since:
            found = conflict(other, step)
            if found == BARRIER or (found == BARRIER_IF_MANY and not separated):
                needed = max(needed, found)
        step.barrier = needed
        if needed == BARRIER:
            since = []
        elif needed == BARRIER_IF_MANY:
            since = [(other, True) for other, _ in since]
        since.append((step, False))


def share_products(steps: Sequence[Step], units: Callable[[Step], int]) -> None:
    """Let products that follow each other without a barrier share the threads as one."""
    group: list[Step] = []

    def close() -> None:
        total = sum(units(step) for step in group)
        begin = 0
        for step in group:
            step.ints = [begin, total]
            begin += units(step)
        group.clear()

    for step in steps:
        if step.kind != "matmul" or step.barrier != NO_BARRIER:
            close()
        if step.kind == "matmul":
            group.append(step)
    close()
