"""Followers: who reads several texts in an event loop, and is told when something settles."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from mtpcore.lm.jobs import Job

__all__ = ["Follower", "tell"]


class Follower:
    """Waits in an event loop for what rounds bring to jobs, while an engine runs rounds for them.

    It is told once of all that settled since it last looked, however many rounds that were.

    Parameters
    ----------
    jobs : sequence of Job
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.loop = asyncio.get_running_loop()
        self._jobs = jobs
        self._waiting: asyncio.Future[None] | None = None
        self._is_told = self._has_left = False
        self._error: BaseException | None = None
        self._n_settled = 0

    async def wait(self, end: float | None = None) -> None:
        """Return when something settled of which this was not told.

        Parameters
        ----------
        end : float, optional
            When to give up, by the loop's clock.

        Raises
        ------
        TimeoutError
            ``end`` has come.
        BaseException
            What a round raised.
        """
        left = None if end is None else end - self.loop.time()
        if left is not None and left <= 0:
            raise TimeoutError
        if not self._is_told:
            self._waiting = self.loop.create_future()
            await (self._waiting if left is None else asyncio.wait_for(self._waiting, left))
        self._is_told = False  # before anything is looked at
        if self._error is not None:
            raise self._error

    def leave(self) -> None:
        """Let no further round be run for it."""
        self._has_left = True

    def fail(self, error: BaseException) -> None:
        """End with what a round raised, in the thread that ran it."""
        self._error = error

    @property
    def is_over(self) -> bool:
        """Whether nothing further comes, or nobody waits for it."""
        if self._has_left or self._error is not None:
            return True
        return all(job.is_done for job in self._jobs)

    def has_news(self) -> bool:
        """Say whether it is to be told something; asked once after each round, in its thread."""
        n_settled = sum(len(job.pieces) + job.is_done for job in self._jobs)
        is_news = n_settled != self._n_settled or self._error is not None
        self._n_settled = n_settled
        if not is_news or self._is_told:
            return False
        self._is_told = True
        return True

    def wake(self) -> None:
        """Go on, in the loop."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def tell(followers: Iterable[Follower]) -> None:
    """Wake those for whom a round brought something: of each event loop by one call."""
    told: dict[asyncio.AbstractEventLoop, list[Follower]] = {}
    for one in followers:
        if one.has_news():
            told.setdefault(one.loop, []).append(one)
    for loop, several in told.items():
        try:
            loop.call_soon_threadsafe(_wake, several)
        except RuntimeError:  # the loop has ended, and who waited there with it
            for one in several:
                one.leave()


def _wake(followers: Iterable[Follower]) -> None:
    for one in followers:
        one.wake()
