"""Transactions: an act that fails, at whatever point, leaves everything as it was."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any, Protocol, cast

from mtpcore.acts.guards import Guard, holding
from mtpcore.acts.stack_frames import newest_frames
from mtpcore.boundary.forks import give_lock

__all__ = ["Journal", "Saved", "Transaction"]

_settling = threading.RLock()
"""One for all journals, since acts are rarely cut off, and a journal's end must run no code."""
give_lock(sys.modules[__name__], "_settling", threading.RLock)


class Saved(Protocol):
    """Something that an act may change."""

    def save(self) -> Any:
        """Return what ``restore`` needs; nothing that happens later changes it."""

    def restore(self, saved: Any) -> None:
        """Put back what ``save`` returned; where this is cut off it is called again."""


class Journal:
    """What is under way in a context, or in all contexts of a Cross.

    Before an act changes anything it notes how that is taken back, and a single assignment makes
    all of it final. So an exception may come out of any line of an act, a signal's between any two
    instructions too: what was begun is taken back at once, or finished if it was final. Where that
    is cut off in turn it is done again before the next act: settling twice is settling once.

    Parameters
    ----------
    guard : Guard
        Lets one act run at a time.
    """

    __slots__ = ("_guard", "_open")

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._open: Transaction | None = None

    def transaction(self, things: Iterable[Saved]) -> Transaction:
        """Return the transaction of an act that may change these things, to be entered at once.

        No other one is under way: guards let one act run at a time, and an act opens no second one.
        """
        if self._open is not None:
            self.settle()
        return Transaction(self, self._guard.turn, [(thing, thing.save()) for thing in things])

    def settle(self) -> None:
        """Settle an act that was cut off; leave one that is running alone.

        Calls that only ask for a sequence's length come here too, in any thread: the next act
        begins only when no thread is still settling the one before.
        """
        if self._open is not None:
            holding(_settling, self._settle)

    def _settle(self) -> None:
        act = self._open
        if act is None or self._is_running(act):
            return
        if self._open is act:  # a thread that was at it may have come to its end meanwhile
            act.settle()
            self._open = None

    def _is_running(self, act: Transaction) -> bool:
        """Say whether a thread is at an act; what an exception left behind is not running.

        Frames of this thread alone are looked at: those of others may go meanwhile, as soon as a
        collection of garbage lets these run, and CPython 3.11 then follows memory that was freed.
        """
        guard, running = self._guard, cast("FrameType | None", sys._getframe(1))
        while running is not None:
            if running is act.frame:
                return True
            running = running.f_back
        return guard.is_elsewhere(act.turn) and guard.thread in newest_frames()


class Transaction(AbstractContextManager["Transaction"]):
    """What an act changes while it is under way; its end makes it final.

    One of these surrounds every batch, so it is a plain object: a generator costs more.
    """

    __slots__ = ("_finish", "_journal", "_saved", "frame", "turn")

    def __init__(self, journal: Journal, turn: int, saved: list[tuple[Saved, Any]]) -> None:
        self._journal, self.turn, self._saved = journal, turn, saved
        self._finish: Callable[[], None] | None = None
        self.frame: FrameType | None = None

    def __enter__(self) -> Transaction:
        """Note how to take back what follows."""
        self.frame = sys._getframe(1)
        self._journal._open = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Make it final, or undo it after an error, which is raised further."""
        if kind is not None:
            self.settle()
        self._journal._open = None
        self.frame = None  # its locals may hold this act

    def commit(self, finish: Callable[[], None]) -> None:
        """Make final what was done, and finish it.

        ``finish`` is all that is left. It is called once more wherever it is cut off, so calling it
        twice must be calling it once.
        """
        self._finish = finish
        finish()

    def settle(self) -> None:
        """Undo the act, or finish it if it is final; a second call does nothing."""
        if self._finish is not None:
            self._finish()
            return
        for thing, saved in self._saved:
            thing.restore(saved)
