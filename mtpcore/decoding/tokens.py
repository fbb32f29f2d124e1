"""An iterator over the tokens of one request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from mtpcore.decoding.request import Request
from mtpcore.errors import BusyError, CapacityError

__all__ = ["Tokens"]


class Rounds(Protocol):
    """What works on requests: a ``Generator``."""

    def queue(self, request: Request) -> None:
        """Let rounds work on a request."""

    def step(self) -> None:
        """Run one round."""

    def cancel(self, request: Request) -> None:
        """Stop a request."""


class Tokens(Iterator[int]):
    """Runs rounds when the next token is asked for; what ``Generator.generate`` returns.

    Unlike a generator of Python's it is not finished by an exception: the next call goes on.
    Closing it, or dropping the last reference to it, cancels the request.
    """

    def __init__(self, generator: Rounds, request: Request) -> None:
        self._generator, self._request = generator, request
        self._given = 0
        self._is_queued = self._is_closed = False

    def __next__(self) -> int:
        """Return the next token.

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
            while given == len(request.tokens):
                if request.done:
                    break
                self._generator.step()
            else:
                self._given = given + 1
                return request.tokens[given]
        except BaseException:
            request.resting, self._given = True, given
            raise
        if request.finish_reason == "cancelled" and not self._is_closed:
            raise CapacityError(
                "the text was given up: another one needed its sequence",
                where=f"after {given} tokens",
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
