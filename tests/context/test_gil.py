"""Plans and draft loops run without the GIL: other Python threads go on meanwhile."""

import sys
import time
from threading import Event, Thread

import pytest

from mtpcore import Batch, Context, Sampling, link, load_model

ENOUGH = 300
"""Turns of another thread during one call. Only a thread that is let in gets any: the interpreter
is told not to take turns by itself, and what NumPy does with arrays lets it in for moments."""
TRIES = 200


@pytest.fixture
def turns():
    """The turns that another thread has had, counted; each ends by giving the GIL up."""
    counted, ended = [0], Event()

    def count():
        while not ended.is_set():
            counted[0] += 1
            time.sleep(0)

    interval, thread = sys.getswitchinterval(), Thread(target=count, daemon=True)
    sys.setswitchinterval(60.0)
    thread.start()
    yield counted
    ended.set()
    sys.setswitchinterval(interval)
    thread.join()


def most_turns(turns, context, call):
    """Return the most turns during a call; a machine that is busy may give none to one."""
    most = 0
    for _ in range(TRIES):
        context.remove(0)
        before = call()
        most = max(most, turns[0] - before)
        if most >= ENOUGH:
            break
    return most


def test_another_thread_runs_during_process(turns):
    llm = Context(load_model("demo"), 512, threads=1)

    def call():
        batch = Batch.of([7] * 512)
        before = turns[0]
        llm.process(batch)
        return before

    assert most_turns(turns, llm, call) >= ENOUGH


def test_another_thread_runs_during_a_draft(turns):
    """The loop's first pass reads the prompt."""
    cross = link(Context(load_model("demo"), 1024, threads=1))

    def call():
        cross.llm.process(Batch.of([7] * 500))
        cross.pending(0, Sampling.greedy())
        before = turns[0]
        cross.draft(0, 8)
        return before

    assert most_turns(turns, cross, call) >= ENOUGH


def test_a_thread_that_is_not_let_in_gets_no_turns(turns):
    """Long work that keeps the GIL: what the tests above count is the GIL given up."""
    before = turns[0]
    sorted(range(300_000), key=lambda i: i * 7919 % 1009)
    assert turns[0] - before <= 1
