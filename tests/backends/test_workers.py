"""Tasks that several threads share."""

import os
import random
import signal
import threading
import time

import pytest
from harness.interrupted import raising_alarms

from mtpcore.backends.workers import run_all

N_SIGNALS = int(os.environ.get("MTPCORE_SIGNALS", "120"))


def never():
    pytest.fail("nothing interrupts it")


@pytest.mark.parametrize("threads", [1, 3, 20])
@pytest.mark.parametrize("n_tasks", [0, 1, 10])
def test_every_task_runs_once(threads, n_tasks):
    done, names = [], set()

    def task(number):
        names.add(threading.get_ident())
        done.append(number)

    run_all([lambda i=i: task(i) for i in range(n_tasks)], threads, never)
    assert sorted(done) == list(range(n_tasks))
    assert threading.get_ident() not in names


def test_the_first_of_several_failures_is_raised():
    both, done = threading.Barrier(2, timeout=60), []

    def fail(error):
        both.wait()
        raise error

    tasks = [lambda: fail(KeyError("first")), lambda: fail(IndexError("second"))]
    with pytest.raises(KeyError, match="first"):
        run_all([*tasks, lambda: done.append(1)], 2, never)
    assert done == []


def test_an_interrupt_at_any_moment_ends_it():
    """No thread goes on, and none waits for ever."""
    chance, n_raised, running, is_over = random.Random(3), 0, set(), threading.Event()

    def task():
        me = object()
        running.add(me)
        while not is_over.is_set() and chance.random() > 0.1:
            time.sleep(0)
        running.remove(me)

    with raising_alarms():
        while n_raised < N_SIGNALS:
            is_over.clear()
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 1e-3))
                    run_all([task] * 20, 3, is_over.set)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                n_raised += 1
            assert not running
