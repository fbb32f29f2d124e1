"""The rule by which all threads or one run a plan, told paces without a clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpcore._ext._pace import Paces
from mtpcore.errors import BackendError

WARM = 100


def run(paces, n, shared, alone):
    """Run n times at these paces; return how often all threads ran, and the time lost."""
    n_shared, lost = 0, 0.0
    for _ in range(n):
        is_shared = paces.next_is_shared()
        pace = shared if is_shared else alone
        paces.end_run(pace)
        n_shared += is_shared
        lost += pace - min(shared, alone)
    return n_shared, lost / (n * min(shared, alone))


@given(shared=st.floats(0.05, 20.0))
def test_the_faster_way_runs_and_trying_the_other_costs_little(shared):
    paces = Paces()
    run(paces, WARM, shared, 1.0)
    n_shared, lost = run(paces, 10_000, shared, 1.0)
    assert lost < 0.025
    if shared < 0.9:
        assert n_shared > 9_500
    if shared > 1.1:
        assert n_shared < 500


def test_threads_that_share_well_are_hardly_disturbed():
    paces = Paces()
    run(paces, WARM, 1 / 16, 1.0)
    assert run(paces, 10_000, 1 / 16, 1.0)[1] < 0.02


@given(slow=st.floats(2.0, 50.0), n_before=st.integers(WARM, 3_000))
def test_a_machine_that_gets_busy_is_noticed_at_once(slow, n_before):
    paces = Paces()
    run(paces, n_before, 0.5, 1.0)
    n_shared, _ = run(paces, 30, 0.5 * slow * 2, 1.0)
    assert n_shared < 12


@given(n_busy=st.integers(200, 3_000))
def test_a_machine_that_is_free_again_is_noticed_after_a_while(n_busy):
    paces = Paces()
    run(paces, WARM, 0.5, 1.0)
    run(paces, n_busy, 5.0, 1.0)
    run(paces, 1_024, 0.5, 1.0)
    assert run(paces, 1_000, 0.5, 1.0)[0] > 950


@given(data=st.data())
def test_single_slow_runs_do_not_decide(data):
    paces = Paces()
    run(paces, WARM, 0.5, 1.0)
    slow = data.draw(st.sets(st.integers(0, 999), max_size=10))
    n_shared = 0
    for i in range(1_000):
        is_shared = paces.next_is_shared()
        paces.end_run((20.0 if i in slow else 1.0) * (0.5 if is_shared else 1.0))
        n_shared += is_shared
    assert n_shared > 700


def test_a_slow_trial_is_soon_repeated():
    paces = Paces()
    run(paces, WARM, 0.5, 1.0)
    while paces.next_is_shared():
        paces.end_run(20.0)
    while not paces.next_is_shared():
        paces.end_run(1.0)
    paces.end_run(20.0)
    assert run(paces, 100, 0.5, 1.0)[0] > 50


@pytest.mark.parametrize("pace", [0.0, -1.0, float("nan"), float("inf")])
def test_no_pace_is_refused(pace):
    with pytest.raises(BackendError, match="no pace"):
        Paces().end_run(pace)
