"""Tasks that several threads share, for a thread that a signal may interrupt."""

from __future__ import annotations

from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Lock

from mtpcore.acts.closing import Closing

__all__ = ["Workers", "run_all"]

_Work = Callable[[], None]


def _begin(work: _Work) -> None:
    """Let a thread of its own do some work."""
    start_new_thread(work, ())


def run_all(
    tasks: Sequence[Callable[[], object]],
    threads: int,
    stop: Callable[[], None],
    begin: Callable[[_Work], None] = _begin,
) -> None:
    """Run tasks in several threads, begun in their order; return when all have ended.

    Where a task fails no further one begins. Signals are handled in the thread that waits: between
    any two of its instructions an exception may come up. So it waits by plain locks, whose methods
    are single calls. A ``Future`` or a ``Thread`` is waited for in Python, by a ``Condition``: an
    interrupt there leaves that taken, and the thread that has to tell of its end waits for ever.

    Parameters
    ----------
    tasks : sequence of callable
    threads : int
    stop : callable
        Called where this call is interrupted: lets the tasks that run end early.
    begin : callable
        Lets a thread do some work; default: a new one.

    Raises
    ------
    BaseException
        What the first of the tasks that failed raised, or an interrupt; no thread goes on.
    """
    left, errors = deque(enumerate(tasks)), dict[int, BaseException]()
    ends = [allocate_lock() for _ in tasks[:threads]]  # each is taken until its thread ends
    begun: list[Lock] = []

    def work(end: Lock) -> None:
        begun.append(end)  # before a task is taken
        try:
            while left:
                number, task = left.popleft()
                try:
                    task()
                except BaseException as error:
                    errors[number] = error
                    left.clear()
        except IndexError:  # another thread took the last one
            pass
        finally:
            end.release()

    for end in ends:
        end.acquire()
    try:
        for end in ends:
            begin(partial(work, end))
        _wait(ends)
    except BaseException:
        left.clear()  # a thread that begins after this finds nothing to do
        stop()
        _wait(begun)
        raise
    if errors:
        raise errors[min(errors)]


class Workers(Closing):
    """Threads that stay for the next tasks, until they are closed.

    A new thread may share a processor with others for some milliseconds before the system gives it
    one of its own, so tasks as short as that gain nothing from new threads.

    Parameters
    ----------
    threads : int
        Begun when tasks first need them.
    """

    def __init__(self, threads: int) -> None:
        self.threads, self._n_begun = threads, 0
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._ends: list[Lock] = []

    def run_all(self, tasks: Sequence[Callable[[], object]], stop: Callable[[], None]) -> None:
        """Run tasks as the function ``run_all`` does."""
        run_all(tasks, self.threads, stop, self._begin)

    def close(self) -> None:
        """Let all threads end, and wait for those that have begun."""
        try:
            self._end()
        except BaseException:  # an interrupt: threads that are told twice end all the same
            self._end()
            raise

    def _begin(self, work: _Work) -> None:
        if self._n_begun < self.threads:
            self._n_begun += 1
            start_new_thread(self._serve, (allocate_lock(),))
        self._work.put(work)

    def _serve(self, end: Lock) -> None:
        with end:
            self._ends.append(end)
            while (work := self._work.get()) is not None:
                work()

    def _end(self) -> None:
        for _ in range(self._n_begun):
            self._work.put(None)
        _wait(self._ends)


def _wait(ends: Sequence[Lock]) -> None:
    for end in ends:
        with end:
            pass
