"""The rule by which the fastest way to prefetch weights is kept, told speeds without a clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpcore._ext import _cpu, _fetch
from mtpcore._ext._fetch import PASSES, ROWS, SOON, TRIALS, WAYS, Choice
from mtpcore.errors import BackendError

Q8_0, TRIAL = 8, TRIALS * len(WAYS)
few_speeds = st.floats(1, 100)
distinct_speeds = st.permutations([20.0, 24.0, 30.0, 36.0]).map(
    lambda speeds: dict(zip(WAYS, speeds, strict=True))
)


@pytest.fixture(autouse=True)
def _nothing_remembered():
    before = _fetch.recall()
    _fetch.forget()
    yield
    _fetch.forget()
    for key, (_, speeds) in before.items():
        _fetch.remember(*key, speeds)


def run_trial(choice, speed_of):
    """Run the passes of a trial; return its result, and the ways that they used."""
    ways, result = [], None
    while choice.is_trial:
        assert result is None
        ways.append(choice.way)
        result = choice.end_pass(speed_of(len(ways) - 1, choice.way))
    return result, ways


@given(speeds=distinct_speeds)
def test_the_fastest_way_is_kept(speeds):
    choice = Choice(Q8_0, "1")
    (way, medians), ways = run_trial(choice, lambda _, way: speeds[way])
    assert ways == list(WAYS) * TRIALS
    assert way == choice.way == max(speeds, key=speeds.get)
    assert medians == pytest.approx(speeds)


@given(
    speeds=distinct_speeds,
    outliers=st.dictionaries(st.integers(0, TRIAL - 1), st.floats(1e-3, 1e6), max_size=3),
)
def test_a_few_outliers_do_not_decide(speeds, outliers):
    (way, medians), _ = run_trial(Choice(Q8_0, "1"), lambda i, way: outliers.get(i, speeds[way]))
    assert way == max(speeds, key=speeds.get)
    assert medians == pytest.approx(speeds)


@given(drift=st.floats(0.5, 2.0), speeds=distinct_speeds)
def test_a_machine_that_becomes_slower_or_faster_does_not_decide(drift, speeds):
    change = drift ** (1 / TRIAL)  # from pass to pass
    (way, _), _ = run_trial(Choice(Q8_0, "1"), lambda i, way: speeds[way] * change**i)
    assert way == max(speeds, key=speeds.get)


def wait_for_trial(choice):
    """Run passes until a trial begins; return how many, and the way that all of them used."""
    ways = []
    while not choice.is_trial:
        ways.append(choice.way)
        assert choice.end_pass(1.0) is None
    assert len(set(ways)) == 1
    return len(ways), ways[0]


def test_trials_follow_later_and_later():
    choice, waits = Choice(Q8_0, "1"), []
    for _ in range(8):
        run_trial(
            choice, lambda _, way: {"lines": 20.0, "pages": 24.0, "none": 30.0}.get(way, 26.0)
        )
        n, way = wait_for_trial(choice)
        waits.append(n + TRIAL)
        assert way == "none"
    assert waits == [min(SOON << i, PASSES) for i in range(8)]


@given(first=distinct_speeds, second=distinct_speeds)
def test_what_changes_for_good_is_noticed_within_three_trials(first, second):
    choice = Choice(Q8_0, "1")
    run_trial(choice, lambda _, way: first[way])
    for _ in range(3):
        wait_for_trial(choice)
        run_trial(choice, lambda _, way: second[way])
    assert choice.way == max(second, key=second.get)


@given(speeds=distinct_speeds, factors=st.lists(st.floats(0.92, 1.08), min_size=4, max_size=4))
def test_one_trial_that_was_disturbed_does_not_change_what_was_clear(speeds, factors):
    choice = Choice(Q8_0, "1")
    disturbed = {way: speeds[way] * factor for way, factor in zip(WAYS, factors, strict=True)}
    for measured in (speeds, speeds, disturbed):
        while not choice.is_trial:
            choice.end_pass(1.0)
        run_trial(choice, lambda _, way, measured=measured: measured[way])
    assert choice.way == max(speeds, key=speeds.get)


def test_a_way_that_is_hardly_faster_is_no_reason_to_change():
    _fetch.remember(Q8_0, "1", {"lines": 20.0, "lines-l2": 20.0, "pages": 31.5, "none": 20.0})
    choice = Choice(Q8_0, "1")
    wait_for_trial(choice)
    (way, _), _ = run_trial(choice, lambda _, way: {"pages": 31.5, "none": 43.5}.get(way, 20.0))
    assert way == "pages"  # none: 31.75 on average
    wait_for_trial(choice)
    (way, _), _ = run_trial(choice, lambda _, way: {"pages": 31.5, "none": 43.5}.get(way, 20.0))
    assert way == "none"


def test_trials_cost_half_a_percent_where_other_ways_take_three_times_as_long():
    slow_passes = TRIAL - TRIALS
    assert round(2 * slow_passes / PASSES, 3) <= 0.005


@pytest.mark.parametrize("fetch", WAYS)
def test_a_way_that_is_asked_for_is_used_and_no_trial_goes_on(fetch):
    choice = Choice(Q8_0, "1")
    choice.end_pass(9.0)
    choice.end_pass(9.0, fetch)
    for _ in range(2 * TRIAL):
        assert not choice.is_trial
        assert choice.way == fetch
        assert choice.end_pass(9.0, fetch) is None
    choice.end_pass(9.0, "auto")
    assert choice.is_trial  # it goes on where it was
    assert choice.way == WAYS[2]


def test_what_was_measured_is_remembered_for_choices_made_later():
    assert Choice(Q8_0, "1").is_trial
    speeds = {"lines": 20.0, "lines-l2": 28.0, "pages": 31.5, "none": 30.0}
    _fetch.remember(Q8_0, "1", speeds)
    choice = Choice(Q8_0, "1")
    assert not choice.is_trial
    assert choice.way == "pages"
    assert Choice(Q8_0, "2-4").is_trial
    assert Choice(2, "1").is_trial
    assert _fetch.recall() == {(Q8_0, "1"): ("pages", speeds)}
    _fetch.forget()
    assert _fetch.recall() == {}


@pytest.mark.parametrize(("type_", "rows"), [(-1, "1"), (_fetch.TYPES, "1"), (Q8_0, "3")])
def test_no_such_type_or_class_of_rows(type_, rows):
    with pytest.raises(BackendError, match="no such"):
        Choice(type_, rows)
    with pytest.raises(BackendError, match="no such"):
        _fetch.remember(type_, rows, dict.fromkeys(WAYS, 1.0))
    assert _fetch.recall() == {}


def test_names():
    assert _cpu.available_fetches() == (*WAYS, "auto")
    assert ROWS == ("1", "2-4", "5-8", "9-16")


def test_ways_that_do_not_exist_are_refused():
    with pytest.raises(BackendError, match="no such way"):
        Choice(Q8_0, "1").end_pass(1.0, "backwards")
