"""Engine: rounds of one generator, for consumers in any thread."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Lock, get_ident
from types import FrameType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from mtpcore.acts.guards import Guard, act
from mtpcore.acts.stack_frames import newest_frames
from mtpcore.decoding import Generator
from mtpcore.errors import BusyError, MtpcoreError
from mtpcore.lm.following import Follower, tell
from mtpcore.lm.jobs import Job

__all__ = ["Engine"]

R = TypeVar("R")

_PATIENCE = 0.1
"""Seconds after which a waiting thread checks whether the thread with the round still runs."""


class Engine:
    """Lets consumers share a generator: one of them runs a round, which serves all of them.

    A consumer submits jobs and calls ``advance`` until they are done. In each call one thread runs
    a round and the others wait for its end. What others ask for meanwhile is queued, and done by
    the thread that runs the round. If a thread is interrupted, at whatever point, the next call by
    any thread goes on.

    Parameters
    ----------
    generator : Generator
        Not to be used by others while a round runs.
    """

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self.guard = Guard()  # of rounds: compiled, so that no interrupt leaves it taken
        self._jobs: dict[Job, None] = {}  # those that run or wait, in order
        self._arrived: deque[Job] = deque()
        self._cancelled: deque[Job] = deque()
        self._thread = 0  # which ran the latest round
        self._n_rounds = 0
        self._waiting: deque[Lock] = deque()  # taken ones, which a round's end releases
        self._executor: tuple[int, Executor] | None = None
        self._asked: set[Future[Any]] = set()  # what the executor was asked to do, and has not done
        self._followers: deque[Follower] = deque()  # known to the executor's thread alone
        self._round_of: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[None]] = (
            WeakKeyDictionary()
        )
        self.is_closed = False

    @property
    def n_running(self) -> int:
        """How many jobs run or wait."""
        self._settle()
        # One that is done may still be there where a round was cut off; the next one lets go of it.
        return sum(not job.is_done for job in (*self._jobs, *self._arrived))

    def submit(self, jobs: Iterable[Job]) -> None:
        """Let rounds work on jobs; submitting one twice makes no difference."""
        self.check_open()
        self._arrived.extend(jobs)

    def cancel(self, jobs: Iterable[Job]) -> None:
        """End jobs that no consumer waits for any more, and free their sequences.

        If a round is running, that happens at its end; this call does not wait for it.
        """
        self._cancelled.extend(job for job in jobs if not job.is_done)
        self._settle()

    @property
    def executor(self) -> Executor:
        """The thread that runs rounds for event loops; a forked child has its own."""
        process = os.getpid()
        if self._executor is None or self._executor[0] != process:
            self._executor = process, ThreadPoolExecutor(1, thread_name_prefix="mtpcore")
            self._asked, self._followers = set(), deque()
        return self._executor[1]

    async def run(self, function: Callable[[], R]) -> R:
        """Call a function in the thread where rounds run for event loops."""
        return await asyncio.wrap_future(self._ask(function))

    def follow(self, follower: Follower) -> None:
        """Run rounds in that thread until nothing further comes for a follower.

        A round serves all followers. What the thread is asked to do meanwhile waits for the end of
        one round, and of no second one. What a round raises is for the follower that has been there
        longest.
        """
        self._ask(partial(self._begin_leading, follower))

    def _ask(self, function: Callable[[], R]) -> Future[R]:
        """Let the thread of rounds call a function."""
        self.check_open()
        asked = self.executor.submit(function)
        self._asked.add(asked)
        asked.add_done_callback(self._asked.discard)
        return asked

    def _begin_leading(self, follower: Follower) -> None:
        self._followers.append(follower)
        if len(self._followers) == 1:
            self._lead()

    def _lead(self) -> None:
        """Run rounds for followers; whatever else the thread is asked to do comes between two."""
        followers = self._followers
        while followers:
            if self._asked:
                with suppress(RuntimeError):  # the engine was closed, which the next round says
                    self.executor.submit(self._lead)
                    return
            try:
                self.advance()
            except BaseException as error:  # of any kind: the executor would keep it to itself
                followers[0].fail(error)
            tell(followers)
            for one in [one for one in followers if one.is_over]:
                followers.remove(one)

    async def advance_together(self) -> None:
        """Run a round as ``advance`` does, or wait for the end of the one that this loop runs.

        Consumers of one event loop that wait ask for one round together: it serves all of them,
        and what is asked of the thread meanwhile waits for that one alone.
        """
        loop = asyncio.get_running_loop()
        running = self._round_of.get(loop)
        if running is not None and not running.done():
            await asyncio.wait([running])
            return
        running = asyncio.ensure_future(self.run(self.advance))
        self._round_of[loop] = running
        await running

    def close(self) -> None:
        """End all jobs; their consumers get an error."""
        self.is_closed = True
        if self._executor is not None and self._executor[0] == os.getpid():
            self._executor[1].shutdown(wait=False)
        for job in [*self._jobs, *self._arrived]:
            if not job.is_done:
                job.fail(closed())
                self._cancelled.append(job)
        self._settle()
        self._notify()

    def check_open(self) -> None:
        """Raise MtpcoreError after ``close``."""
        if self.is_closed:
            raise closed()

    def advance(self) -> None:
        """Run a round, or wait for the end of the one that another thread runs.

        Raises
        ------
        BusyError
            It was called by a logits processor, which is a part of a round.
        Exception
            Whatever the round raised, unless it is another consumer's.
        """
        self.check_open()
        n_rounds = self._n_rounds
        try:
            error = self._round()
        except BusyError as busy:
            self._wait(n_rounds, busy)
            return
        except BaseException:  # an interrupt: another thread goes on
            self._notify()
            raise
        finally:
            self._settle()
        self._notify()
        if error is not None:
            raise error

    def _wait(self, n_rounds: int, busy: BusyError) -> None:
        """Wait for the end of the round that another thread runs."""
        if self._is_inside_a_round():
            raise BusyError(
                "a text is asked for in the middle of a round",
                fix="let what a round calls, as a logits processor, do without the LM",
            ) from None
        end = Lock()
        end.acquire()
        self._waiting.append(end)  # before the count is looked at: a round may just have ended
        ended = self._n_rounds != n_rounds or end.acquire(timeout=_PATIENCE)
        if not ended and self._thread not in newest_frames():
            raise busy  # a fork was made of a process that was in the middle of a round

    def _is_inside_a_round(self) -> bool:
        """Say whether this thread runs the round, and something that the round called is here."""
        code = _CODE_OF_ROUND
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not (frame.f_code is code and frame.f_locals["self"] is self):
            frame = frame.f_back
        return frame is not None

    def _notify(self) -> None:
        """Wake up those that wait for a round's end.

        Nothing is held meanwhile that an interrupt could leave taken, as it does a ``Condition``.
        """
        self._n_rounds += 1
        with suppress(IndexError):  # another thread may be at it
            while True:
                self._waiting.popleft().release()

    @act
    def _round(self) -> Exception | None:
        """Run a round; return what it raised, unless that is for one consumer alone."""
        self._thread = get_ident()
        try:
            self._admit()
            self.generator.step()
        except Exception as error:
            blamed = [job for job in self._jobs if job.raised is error]
            if not blamed:
                return error
            for job in blamed:
                self.generator.cancel(job.request)
                job.fail(error)
        self._update()
        return None

    def _settle(self) -> None:
        """Do what was asked for while a round ran; where one is running, it is done after that."""
        while self._cancelled:
            try:
                self._tend()
            except BusyError:
                return

    @act
    def _tend(self) -> None:
        self._admit()
        self._update()

    def _admit(self) -> None:
        """Queue what arrived and cancel what was given up; cut off, it is done by the next call."""
        while self._arrived:
            job = self._arrived[0]
            self.generator.queue(job.request)
            self._jobs[job] = None
            job.is_queued = True
            self._arrived.popleft()
        while self._cancelled:
            if self._cancelled[0].is_queued:
                self.generator.cancel(self._cancelled[0].request)
            self._cancelled.popleft()

    def _update(self) -> None:
        """Give jobs what the round brought, and drop those that are done."""
        for job in list(self._jobs):
            job.update()
            if job.is_done:
                del self._jobs[job]


_CODE_OF_ROUND = inspect.unwrap(Engine._round).__code__


def closed() -> MtpcoreError:
    """Return the error of whatever is asked after ``close``."""
    return MtpcoreError("the LM is closed", fix="make a new one: LM(path)")
