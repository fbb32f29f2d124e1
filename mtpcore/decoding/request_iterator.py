"""An iterator over the tokens or frames of one request, which runs rounds as they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from mtpcore.decoding.request_queue import R, RequestQueue
from mtpcore.errors import BusyError, CapacityError

__all__ = ["RequestIterator"]

T = TypeVar("T")


class RequestIterator(Iterator[T], Generic[R, T]):
    """Runs rounds until the next token or frame is there; what ``generate`` returns.

    Unlike a Python generator it is not finished by an exception: the next call goes on. Closing it,
    or dropping the last reference to it, cancels the request.

    Parameters
    ----------
    queue : RequestQueue
        What runs the rounds.
    request : Request or FrameRequest
        Queued with the first call of ``next``.
    chosen : sequence
        The request's tokens or frames, which grow with the rounds.
    """

    def __init__(self, queue: RequestQueue[R], request: R, chosen: Sequence[T]) -> None:
        self._queue, self._request, self._chosen = queue, request, chosen
        self._n_given = 0
        self._is_queued = self._is_closed = False

    def __next__(self) -> T:
        """Return the next token, or the next frame.

        Raises
        ------
        CapacityError
            The request gave its sequence to another one after an interruption.
        """
        request, n = self._request, self._n_given
        if self._is_closed:
            raise StopIteration
        try:
            request.resting = False
            if not self._is_queued:
                self._queue.queue(request)
                self._is_queued = True
            while n == len(self._chosen):
                if request.done:
                    break
                self._queue.step()
            else:
                self._n_given = n + 1
                return self._chosen[n]
        except BaseException:
            request.resting, self._n_given = True, n
            raise
        if request.finish_reason == "cancelled" and not self._is_closed:
            raise CapacityError(
                "the text was given up: another one needed its sequence",
                where=f"after {n} of it",
                fix="make n_seq_max= larger, or go on reading before another text is begun",
            )
        raise StopIteration

    def close(self) -> None:
        """Cancel the request, unless it is done; in the middle of a round, with the next one."""
        self._is_closed = True
        if not self._is_queued or self._request.done:
            return
        try:
            self._queue.cancel(self._request)
        except BusyError:  # collected as garbage at any time, it cannot wait
            self._request.resting = self._request.is_left = True

    def __del__(self) -> None:
        self.close()
