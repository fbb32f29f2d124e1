"""Streams: a text piece by piece, for threads and for asyncio."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence

from mtpcore.acts.closing import Closing
from mtpcore.boundary.copies import Uncopied
from mtpcore.decoding import Request, TokenLogprobs
from mtpcore.errors import BusyError
from mtpcore.lm.completion import Completion, CompletionStats, Piece
from mtpcore.lm.engine import Engine
from mtpcore.lm.following import Follower
from mtpcore.lm.jobs import Job

__all__ = ["AsyncStream", "Stream", "read_together"]


class _Reader:
    """One consumer's way through the pieces of a job."""

    def __init__(self, engine: Engine, job: Job) -> None:
        self.engine, self.job = engine, job
        self.n_given = 0
        self._has_begun = self._is_closed = False

    def begin(self) -> None:
        """Let rounds work on the job; beginning twice makes no difference."""
        self._has_begun = True
        self.engine.submit([self.job])

    def take(self) -> Piece | None:
        """Return the next piece, if it is there; the first call begins."""
        self._has_begun = True
        if self.n_given < len(self.job.pieces):
            self.n_given += 1
            return self.job.pieces[self.n_given - 1].piece
        if not self.job.is_queued:
            self.begin()
        return None

    def is_over(self) -> bool:
        """Say whether no further piece comes; raise the error with which the text ended."""
        is_done = self.job.is_done  # before the pieces are counted: none comes after it
        if self._is_closed:
            return True
        if self.n_given < len(self.job.pieces):
            return False
        self.job.check()
        return is_done

    def close(self) -> None:
        """End the text."""
        self._is_closed = True
        if self._has_begun:
            self.engine.cancel([self.job])


class Stream(Closing, Uncopied, Iterator[Piece]):
    """The pieces of one text as they settle; what ``LM.stream`` returns.

    A piece has whole characters, and nothing that a stop string could still take back. The text
    begins with the first ``next()``. Where something interrupts that, the following one goes on: no
    piece is lost or given twice. ``close``, the end of a ``with`` block and the end of the object
    end the text and free its sequence.

    Parameters
    ----------
    engine : Engine
        Runs the rounds.
    job : Job
        The text's.
    """

    _instead = "take the text of its pieces, or its completion"

    def __init__(self, engine: Engine, job: Job) -> None:
        self._reader = _Reader(engine, job)

    def __next__(self) -> Piece:
        """Return the next piece.

        Raises
        ------
        MtpcoreError
            The LM was closed.
        Exception
            Whatever the text's logits processor raised, or a drafter.
        """
        reader, n_given = self._reader, self._reader.n_given
        try:
            while not reader.is_over():
                piece = reader.take()
                if piece is not None:
                    return piece
                reader.engine.advance()
        except BaseException:  # an interrupt between taking a piece and giving it
            reader.n_given = n_given
            raise
        raise StopIteration

    @property
    def request(self) -> Request:
        """The text's request, to see how far it is; ``close`` ends it."""
        return self._reader.job.request

    @property
    def completion(self) -> Completion:
        """The whole text and what is known about it, once the stream was read to its end.

        Raises
        ------
        BusyError
            It was not.
        """
        return self._reader.job.completion()

    def close(self) -> None:
        """End the text where it is; its sequence is free at once, or after a round under way."""
        self._reader.close()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()


class AsyncStream(Uncopied, AsyncIterator[Piece]):
    """The pieces of one text as they settle, for ``async for``; what ``LM.astream`` returns.

    Rounds run in a thread of the LM's own, so the event loop is free meanwhile; one round serves
    all texts. Cancelling the task that waits for a piece ends the text and frees its sequence, as
    do ``aclose`` and the end of the object.

    Parameters
    ----------
    engine : Engine
        Runs the rounds.
    make_job : callable
        Returns the text's job; called when the first piece is asked for.
    """

    _instead = "take the text of its pieces, or its completion"

    def __init__(self, engine: Engine, make_job: Callable[[], Job]) -> None:
        self._engine, self._make_job = engine, make_job
        self._reader: _Reader | None = None
        self._is_closed = False

    async def begin(self) -> None:
        """Check prompt and settings, which the first piece does otherwise; no round runs yet.

        Raises
        ------
        MtpcoreError
            As ``LM.stream``.
        """
        if self._reader is None and not self._is_closed:
            self._reader = _Reader(self._engine, await self._engine.run(self._make_job))

    async def __anext__(self) -> Piece:
        """Return the next piece.

        Raises
        ------
        MtpcoreError
            A setting or a prompt that ``LM.stream`` refuses, or the LM was closed.
        Exception
            Whatever the text's logits processor raised, or a drafter.
        """
        try:
            await self.begin()
            while self._reader is not None and not self._reader.is_over():
                piece = self._reader.take()
                if piece is not None:
                    return piece
                await self._engine.advance_together()
        except BaseException:
            self._close()
            raise
        raise StopAsyncIteration

    @property
    def completion(self) -> Completion:
        """As ``Stream.completion``.

        Raises
        ------
        BusyError
            The stream was not read to its end.
        """
        return self._begun().job.completion()

    @property
    def stats(self) -> CompletionStats:
        """Counts and times of the text so far.

        Raises
        ------
        BusyError
            It has not begun.
        """
        return self._begun().job.stats

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        """``Completion.prompt_logprobs``; with the first piece all of them are there.

        Raises
        ------
        BusyError
            The text has not begun.
        """
        return self._begun().job.prompt_logprobs

    def _begun(self) -> _Reader:
        if self._reader is None:
            raise BusyError("the text is not finished", fix="read the stream to its end")
        return self._reader

    async def aclose(self) -> None:
        """End the text where it is; as ``Stream.close``, it does not wait."""
        self._close()

    def _close(self) -> None:
        self._is_closed = True
        if self._reader is not None:
            self._reader.close()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._close()


async def read_together(
    streams: Sequence[AsyncStream], pause: Callable[[], Awaitable[None]], end: float | None = None
) -> AsyncGenerator[tuple[int, Piece | None]]:
    """Yield the pieces of several texts as they settle, each with its text's number.

    Its end ends the texts, and frees their sequences. Rounds go on whether or not what they brought
    was read. Each calls the event loop once, for all that it brought: a task for each text would
    take several times as much of the loop.

    Parameters
    ----------
    streams : sequence of AsyncStream
        Of one LM; they have begun, and are read by nobody else.
    pause : callable
        Called when all that had settled was given, before more of it is waited for.
    end : float, optional
        When to give up, by the event loop's clock.

    Yields
    ------
    (int, Piece or None)
        None: the text has ended, and the stream has its completion.

    Raises
    ------
    TimeoutError
        ``end`` has come.
    Exception
        As ``AsyncStream.__anext__``.
    """
    reading = {i: stream._begun() for i, stream in enumerate(streams)}
    follower = Follower([reader.job for reader in reading.values()])
    try:
        for reader in reading.values():
            reader.begin()
        reader.engine.follow(follower)
        while reading:
            await pause()
            await follower.wait(end)
            for i, reader in list(reading.items()):
                while not (is_over := reader.is_over()) and (piece := reader.take()) is not None:
                    yield i, piece
                if is_over:
                    del reading[i]
                    yield i, None
    finally:
        follower.leave()
        for stream in streams:
            await stream.aclose()
