"""An iterator over what is chosen for one request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

from mtpcore.errors import BusyError, CapacityError

__all__ = ["Chosen"]

T = TypeVar("T")


class OneRequest(Protocol[T]):
    """A text that is being written: a ``Request`` or a ``FrameRequest``."""

    resting: bool
    is_left: bool

    @property
    def chosen(self) -> list[T]:
        """What was chosen so far: tokens or frames."""

    @property
    def done(self) -> bool:
        """Whether the request has finished."""

    @property
    def finish_reason(self) -> str | None:
        """Why it has."""


class Rounds(Protocol):
    """What works on requests: a ``Generator`` or ``Frames``."""

    @property
    def queue(self) -> Any:
        """``queue(request)``: let rounds work on a request."""

    def step(self) -> None:
        """Run one round."""

    @property
    def cancel(self) -> Any:
        """``cancel(request)``: stop a request."""


class Chosen(Iterator[T], Generic[T]):
    """Runs rounds when the next one is asked for; what ``generate`` of a Generator returns.

    Unlike a generator of Python's it is not finished by an exception: the next call goes on.
    Closing it, or dropping the last reference to it, cancels the request.
    """

    def __init__(self, generator: Rounds, request: OneRequest[T]) -> None:
        self._generator, self._request = generator, request
        self._given = 0
        self._is_queued = self._is_closed = False

    def __next__(self) -> T:
        """Return the next token, or the next frame.

        Raises
        ------
        CapacityError
            The request gave its sequence to another one after an interruption.
        """
        request, given = self._request, self._given
        try:
            request.resting = False
            if not self._is_queued:
                self._generator.queue(request)
                self._is_queued = True
            while given == len(request.chosen):
                if request.done:
                    break
                self._generator.step()
            else:
                self._given = given + 1
                return request.chosen[given]
        except BaseException:
            request.resting, self._given = True, given
            raise
        if request.finish_reason == "cancelled" and not self._is_closed:
            raise CapacityError(
                "the text was given up: another one needed its sequence",
                where=f"after {given} of it",
                fix="make n_seq_max= larger, or go on reading before another text is begun",
            )
        raise StopIteration

    def close(self) -> None:
        """Cancel the request, unless it is done; in the middle of a round, with the next one."""
        self._is_closed = True
        if not self._is_queued or self._request.done:
            return
        try:
            self._generator.cancel(self._request)
        except BusyError:  # collected as garbage at any time, it cannot wait
            self._request.resting = self._request.is_left = True

    def __del__(self) -> None:
        self.close()
