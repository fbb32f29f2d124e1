"""The requests of a generator: which of them run on a sequence of its Cross, and which wait."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from mtpcore.acts.guards import act
from mtpcore.boundary.arguments import expect
from mtpcore.boundary.copies import Uncopied
from mtpcore.cross import Cross
from mtpcore.errors import BatchError, CapacityError

__all__ = ["QueuedRequest", "RequestQueue"]


class QueuedRequest(Protocol):
    """A text that is being written: a ``Request`` or a ``FrameRequest``."""

    seq: int | None
    is_queued: bool
    resting: bool
    is_left: bool

    @property
    def done(self) -> bool:
        """Whether the request has finished."""

    @property
    def finish_reason(self) -> str | None:
        """Why it has."""


R = TypeVar("R", bound=QueuedRequest)


class RequestQueue(Uncopied, ABC, Generic[R]):
    """Works on requests, round by round; what ``Generator`` and ``Frames`` have in common.

    Parameters
    ----------
    cross : Cross
        Whose sequences requests run on.
    kind : type
        Of the requests.
    """

    _instead = "make one for each Context or Cross"

    def __init__(self, cross: Cross, kind: type[R]) -> None:
        self.cross, self.guard = cross, cross.guard
        self._kind = kind
        self._requests: list[R] = []  # those that are not done, in the order of add()

    @act
    def queue(self, request: R) -> None:
        """Let rounds work on a request; queueing it twice makes no difference.

        Raises
        ------
        BatchError
            It was queued elsewhere.
        """
        self._queue(expect(request, self._kind, "queue() takes a request"))

    def _queue(self, request: R) -> None:
        if request.done or request in self._requests:
            return
        if request.is_queued:
            raise BatchError(
                f"another {type(self).__name__} works on the request",
                fix="make another request of the same prompt for this one",
            )
        self._requests.append(request)
        request.is_queued = True

    @property
    def active(self) -> bool:
        """Whether requests are queued or running; those of interrupted readers do not count."""
        self.cross.journal.settle()
        return any(not (request.done or request.resting) for request in self._requests)

    @act
    def cancel(self, request: R) -> None:
        """Stop a request; its sequence is free at once.

        Raises
        ------
        BatchError
            It was not queued here.
        """
        self._cancel(expect(request, self._kind, "cancel() takes a request"))

    def _cancel(self, request: R) -> None:
        self.cross.journal.settle()
        if request.done:
            return
        if request not in self._requests:
            raise BatchError(
                f"this {type(self).__name__} does not work on the request",
                fix="call cancel() of the object whose add() returned it",
            )
        with self.cross.transaction(()) as transaction:
            transaction.commit(self._cancellation(request))

    @abstractmethod
    def step(self) -> None:
        """Run one round."""

    @abstractmethod
    def _cancellation(self, request: R) -> Callable[[], None]:
        """Return what ends a request as cancelled; calling it twice is calling it once."""

    @abstractmethod
    def _claim(self, request: R) -> int | None:
        """Claim a sequence for a request; None where none is free."""

    def _is_early(self, request: R, running: Sequence[R]) -> bool:
        """Say whether a request had better wait for what a ``running`` one is doing."""
        return False

    def _running(self) -> dict[int, R]:
        """Return the requests of the next round, by sequence."""
        return {r.seq: r for r in self._requests if r.seq is not None and not r.resting}

    def _describe(self) -> str:
        """Return how many requests there are, for ``repr``."""
        n_running = sum(request.seq is not None for request in self._requests)
        return f"{n_running} running, {len(self._requests) - n_running} waiting"

    def _admit(self) -> None:
        """Find sequences for waiting requests, if need be those of resting ones.

        Cancels the requests whose readers are gone.
        """
        self.cross.journal.settle()
        for request in [request for request in self._requests if request.is_left]:
            self._cancel(request)
        running = [*self._running().values()]
        for request in [r for r in self._requests if r.seq is None and not r.resting]:
            if self._is_early(request, running):
                continue
            request.seq = self._claim(request)
            if request.seq is None:
                held = [r for r in self._requests if r.resting and r.seq is not None]
                if not held:
                    return
                self._cancel(held[0])
                request.seq = self._claim(request)
            running.append(request)

    def _check_waiting(self) -> None:
        """Raise CapacityError where requests wait, and no round would free a sequence for them."""
        waiting = [request for request in self._requests if not request.resting]
        if waiting:
            raise CapacityError(
                "no sequence is free",
                where=f"{len(waiting)} requests wait",
                got="; ".join(self.cross.owners.describe()),
                fix="remove() what was processed by hand, finish the requests of other generators "
                "on this Cross, or make n_seq_max= larger",
            )
