"""What the threads of the pool do while there is nothing to do."""

import time

import pytest

import mtpcore

pytestmark = pytest.mark.usefixtures("share_small_plans")

REST = 0.3  # seconds; threads look for work a thousandth of that before they sleep


def busy_share():
    """Return which share of a rest this process computes, all of its threads together."""
    before = time.process_time()
    time.sleep(REST)
    return (time.process_time() - before) / REST


def test_threads_without_work_sleep():
    """The least of a few rests counts: a collector or another test's thread may wake up in one."""
    context = mtpcore.Context(mtpcore.load_model("demo"), 64, threads=2)
    context.process(mtpcore.Batch.of([5, 6, 7]))
    assert min(busy_share() for _ in range(3)) < 0.5
