"""The progress bar of many texts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

__all__ = ["show_progress"]


@contextmanager
def show_progress(n_texts: int, shown: bool | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error while the block runs; it is told how many texts are finished.

    Parameters
    ----------
    n_texts : int
        How many there are.
    shown : bool, optional
        Default: where there are several texts, and standard error is a terminal.
    """
    if shown is None:
        shown = n_texts > 1 and sys.stderr.isatty()
    with tqdm(total=n_texts, unit="text", file=sys.stderr, disable=not shown) as bar:
        yield lambda n_finished: bar.update(n_finished - bar.n)
