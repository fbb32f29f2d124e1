"""Plans and draft loops run without the GIL: other Python threads go on meanwhile."""

import sys
import time
from collections import Counter
from threading import Event, Thread, main_thread

import pytest

from mtpcore import Batch, Context, Sampling, link, load_model
from mtpcore.acts.stack_frames import newest_frames

ENOUGH = 3
TRIES = 200


@pytest.fixture
def turns():
    """The turns another thread has had, counted by the main thread's function meanwhile.

    Only a thread that is let in gets any: the interpreter is told not to take turns by itself.
    Compiled functions show as the one that calls them.
    """
    counted, ended, ident = Counter(), Event(), main_thread().ident

    def count():
        while not ended.is_set():
            counted[newest_frames()[ident].f_code.co_qualname] += 1
            time.sleep(0)

    interval, thread = sys.getswitchinterval(), Thread(target=count, daemon=True)
    sys.setswitchinterval(60.0)
    thread.start()
    yield counted
    ended.set()
    sys.setswitchinterval(interval)
    thread.join()


def turns_within(function, turns, context, call):
    """Return the turns within a function of some calls: none in one call may be a busy machine."""
    turns.clear()
    for _ in range(TRIES):
        context.remove(0)
        call()
        if turns[function] >= ENOUGH:
            break
    return turns[function]


def test_another_thread_runs_during_process(turns):
    llm = Context(load_model("demo"), 512, threads=1)
    batch = Batch.of([7] * 512)
    assert turns_within("CpuPlan.run", turns, llm, lambda: llm.process(batch)) >= ENOUGH


def test_another_thread_runs_during_a_draft(turns):
    """The loop's first pass reads the prompt."""
    cross = link(Context(load_model("demo"), 1024, threads=1))

    def call():
        cross.llm.process(Batch.of([7] * 500))
        cross.pending(0, Sampling.greedy())
        cross.draft(0, 8)

    assert turns_within("CpuPlan.run_schedule", turns, cross, call) >= ENOUGH


def test_a_thread_that_is_not_let_in_gets_no_turns(turns):
    """Long work that keeps the GIL: what the tests above count is the GIL given up."""
    turns.clear()
    sorted(range(300_000), key=lambda i: i * 7919 % 1009)
    assert turns.total() <= 1
