"""Tasks that several threads share, for a thread that a signal may interrupt."""

from __future__ import annotations

from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock

__all__ = ["run_all"]


def run_all(tasks: Sequence[Callable[[], object]], threads: int, stop: Callable[[], None]) -> None:
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
            start_new_thread(work, (end,))
        _wait(ends)
    except BaseException:
        left.clear()  # a thread that begins after this finds nothing to do
        stop()
        _wait(begun)
        raise
    if errors:
        raise errors[min(errors)]


def _wait(ends: Sequence[Lock]) -> None:
    for end in ends:
        with end:
            pass
