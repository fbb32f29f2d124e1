"""Taking back what a failed call did."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

__all__ = ["Undo"]


class Undo(AbstractContextManager[None]):
    """Calls ``undo`` where the body raises, after leaving ``inner`` in the same way.

    One of these surrounds every batch, so it is a plain object: a generator costs more than all
    that it does.
    """

    __slots__ = ("_inner", "_undo")

    def __init__(
        self, undo: Callable[[], None], inner: AbstractContextManager[None] | None = None
    ) -> None:
        self._undo, self._inner = undo, inner

    def __enter__(self) -> None:
        """Enter ``inner``."""
        if self._inner is not None:
            self._inner.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Undo what was done, if there was an error; it goes on."""
        if self._inner is not None:
            self._inner.__exit__(kind, error, trace)
        if kind is not None:
            self._undo()
