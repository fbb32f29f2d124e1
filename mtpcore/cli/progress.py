"""Progress of long work: a bar on terminals, elsewhere a line every ten seconds."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal

from tqdm import tqdm

from mtpcore.cli.terminal import note, says_notes, spell_bytes

__all__ = ["Measure", "Unit", "count_bytes", "count_tokens", "progress"]

Measure = Callable[[], tuple[float, float]]
"""Says how much is done, and of how much; where it does not know yet that is 0."""

Unit = Literal["tokens", "bytes", "runs"]

_DELAY = 0.5  # seconds before a bar is drawn
_REDRAWN = 0.1  # seconds between two pictures of it
_PAUSE = 10.0  # seconds between two lines
_WIDTH, _LINES = 80, 24  # of a terminal that does not say
_DONE, _TIME = "{n_fmt}/{total_fmt}{unit}", "[{elapsed}<{remaining}, {rate_noinv_fmt}]"
_BAR = "{desc}: {percentage:3.0f}%|{bar}| " + f"{_DONE} {_TIME}"


@contextmanager
def progress(title: str, count: Measure, unit: Unit = "tokens") -> Iterator[None]:
    """Show on standard error how far work is while the block runs.

    On a terminal a bar is drawn if it takes longer than half a second; elsewhere a line is written
    every ten seconds. With ``--quiet`` there is neither.

    Parameters
    ----------
    title : str
        What is done: ``reading the prompt``.
    count : callable
        Returns how much is done, and of how much. It is called from another thread.
    unit : {"tokens", "bytes", "runs"}
        What is counted.
    """
    if not says_notes():
        yield
        return
    over, watch = threading.Event(), _draw if sys.stderr.isatty() else _write
    watcher = threading.Thread(target=watch, args=(title, count, unit, over), daemon=True)
    has_begun = False
    try:
        watcher.start()
        has_begun = True
        yield
    finally:
        over.set()
        if has_begun:  # an interrupt may have come up while it began
            watcher.join()


def count_bytes(title: str) -> AbstractContextManager[Callable[[int, int], None]]:
    """Show how far a file is; call what it gives with the bytes that are written, and all."""
    return _count(title, "bytes")


def count_tokens(title: str) -> AbstractContextManager[Callable[[int, int], None]]:
    """Show how far a text is; call what it gives with the tokens that are done, and all."""
    return _count(title, "tokens")


@contextmanager
def _count(title: str, unit: Unit) -> Iterator[Callable[[int, int], None]]:
    counted = [0, 0]

    def report(done: int, total: int) -> None:
        counted[:] = done, total

    with progress(title, lambda: (counted[0], counted[1]), unit):
        yield report


def _columns() -> int:
    """Return how wide the terminal is; some do not say."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or _WIDTH
    except OSError:
        return _WIDTH


def _draw(title: str, count: Measure, unit: Unit, over: threading.Event) -> None:
    if over.wait(_DELAY):
        return
    with tqdm(
        desc=title,
        total=int(count()[1]),
        ncols=_columns(),
        nrows=_LINES,
        unit="B" if unit == "bytes" else f" {unit}",
        unit_scale=unit == "bytes",
        bar_format=_BAR,
        leave=False,
        file=sys.stderr,
    ) as bar:
        bar.start_t -= _DELAY
        while not over.wait(_REDRAWN):
            done, bar.total = map(int, count())
            bar.n = max(bar.n, min(done, bar.total))
            bar.refresh()


def _write(title: str, count: Measure, unit: Unit, over: threading.Event) -> None:
    begin, most = time.monotonic(), 0.0
    while not over.wait(_PAUSE):
        done, total = count()
        most = max(most, min(done, total))
        pace = most / (time.monotonic() - begin)
        if unit == "bytes":
            said = f"{spell_bytes(most)} of {spell_bytes(total)}, {spell_bytes(pace)}/s"
        else:
            said = f"{int(most):,} of {int(total):,} {unit}, {pace:,.1f} {unit}/s"
        minutes = (total - most) / pace / 60 if pace else 0
        note(f"{title}: {said}" + (f", {minutes:,.0f} min left" if minutes >= 1 else ""))
