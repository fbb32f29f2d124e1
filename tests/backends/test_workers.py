"""Tasks that several threads share."""

import os
import random
import signal
import threading
import time

import pytest
from harness.interrupted import raising_alarms

from mtpcore.backends.workers import Workers, run_all

N_SIGNALS = int(os.environ.get("MTPCORE_SIGNALS", "120"))


def in_new_threads(tasks, threads, stop):
    run_all(tasks, threads, stop)


def in_threads_that_stay(tasks, threads, stop):
    with Workers(threads) as workers:
        workers.run_all(tasks, stop)
        workers.run_all(tasks[:0], never)


WAYS = pytest.mark.parametrize("run", [in_new_threads, in_threads_that_stay])


def never():
    pytest.fail("nothing interrupts it")


@WAYS
@pytest.mark.parametrize("threads", [1, 3, 20])
@pytest.mark.parametrize("n_tasks", [0, 1, 10])
def test_every_task_runs_once(run, threads, n_tasks):
    done, names = [], set()

    def task(number):
        names.add(threading.get_ident())
        done.append(number)

    run([lambda i=i: task(i) for i in range(n_tasks)], threads, never)
    assert sorted(done) == list(range(n_tasks))
    assert threading.get_ident() not in names


@WAYS
def test_the_first_of_several_failures_is_raised(run):
    both, done = threading.Barrier(2, timeout=60), []

    def fail(error):
        both.wait()
        raise error

    tasks = [lambda: fail(KeyError("first")), lambda: fail(IndexError("second"))]
    with pytest.raises(KeyError, match="first"):
        run([*tasks, lambda: done.append(1)], 2, never)
    assert done == []


def test_threads_stay_for_the_next_tasks():
    names, both = set(), threading.Barrier(2, timeout=60)

    def task():
        both.wait()
        names.add(threading.get_native_id())

    with Workers(2) as workers:
        for _ in range(5):
            workers.run_all([task, task], never)
            with pytest.raises(ZeroDivisionError):
                workers.run_all([lambda: 1 // 0], never)
    assert len(names) == 2


def test_threads_end_with_the_last_tasks():
    names, all_three = set(), threading.Barrier(3, timeout=60)

    def task():
        all_three.wait()
        names.add(str(threading.get_native_id()))

    with Workers(3) as workers:
        workers.run_all([task] * 3, never)
        assert names <= {*os.listdir("/proc/self/task")}
    end = time.monotonic() + 60
    while names & {*os.listdir("/proc/self/task")}:
        assert time.monotonic() < end
        time.sleep(0.001)


@WAYS
def test_an_interrupt_at_any_moment_ends_it(run):
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
                    run([task] * 20, 3, is_over.set)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                n_raised += 1
            assert not running
