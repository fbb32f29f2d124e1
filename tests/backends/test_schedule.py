"""Schedules: what does not fit is refused, and random ones are those of the definition."""

from functools import cache

import msgspec
import pytest
from harness.head_runs import clear
from harness.random_schedules import (
    AFTER_A_DEAD_ROW,
    AFTER_ITS_OWN,
    GROWN,
    HEADS,
    LINKED,
    MOVED_UP,
    NONE_ANEW,
    WITHOUT_FILLS,
    Drawn,
    DrawnStage,
    best_of_many,
    make,
    schedules,
)
from harness.search import searching
from hypothesis import example, given, note
from hypothesis import strategies as st

from mtpcore._ext._draft import check
from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.draft import run_schedule
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.backends.schedule import (
    KNOWN,
    OF_DRAFT,
    PENDING,
    DraftToken,
    Fill,
    Pick,
)
from mtpcore.errors import BatchError
from mtpcore.testing import Runner


@cache
def plans(kind, threads):
    """Return three heads, each with a memory, of the definition or compiled."""
    backend = ReferenceBackend("f32") if kind == "reference" else CpuBackend()
    return [Runner(backend, *one, threads=threads, kv_dtype="f32", n_batch=32) for one in HEADS]


def drafted(drawn, kind, threads=1, *, compiled=True, n_before=0, built=None):
    runners = plans(kind, threads)
    schedule = make(drawn, runners, n_before)
    schedule = msgspec.structs.replace(schedule, round=built or schedule.round)
    loop = schedule.passes[0].plan.run_schedule if compiled else run_schedule
    try:
        return loop(schedule)
    finally:
        clear(*runners)


@searching(300)
@given(schedules())
@example(WITHOUT_FILLS)
@example(AFTER_ITS_OWN)
@example(AFTER_A_DEAD_ROW)
@example(NONE_ANEW)
@example(MOVED_UP)
@example(LINKED)
@example(GROWN)
@example(msgspec.structs.replace(GROWN, texts=[(0, 0.0)]))
@example(msgspec.structs.replace(GROWN, texts=[(1, 0.0)]))
@example(best_of_many())
def test_random_schedules_are_those_of_the_definition(drawn):
    note(str(drawn))
    wanted = drafted(drawn, "cpu", compiled=False)
    assert drafted(drawn, "cpu") == wanted
    assert drafted(drawn, "cpu", 2) == wanted


@searching(60)
@given(schedules(), st.lists(st.integers(0, 3), min_size=2, max_size=3))
@example(MOVED_UP, [2, 0, 1])
@example(GROWN, [0, 3, 0])
def test_a_round_is_run_again_after_other_rows(drawn, before):
    """Nothing of a run is left in what is kept of a round."""
    runners = plans("cpu", 1)
    built = make(drawn, runners).round
    clear(*runners)
    for n_before in before:
        wanted = drafted(drawn, "cpu", compiled=False, n_before=n_before)
        assert drafted(drawn, "cpu", n_before=n_before, built=built) == wanted


CHAIN = Drawn(
    stages=[
        DrawnStage(0, [(0, None, None, 0), (0, None, None, 0)], [(1, 0)], 0, False, False),
        DrawnStage(1, [(0, 0, OF_DRAFT, 0)], [(0, 1)], 0, False, False),
    ],
    drafts=[(0, PENDING), (0, 0)],
    texts=[(0, 0.0)],
    is_broken=False,
)


def wrong_fields():
    """Return fields of the chain's second stage, and what is said of each."""
    yield {"graph": 2}, "a stage of no pass"
    yield {"graph": -1}, "a stage of no pass"
    yield {"rows": "other"}, "with rows of no kind"
    yield {"rows": "chain", "picks": [Pick(1, 1)]}, "no such output"
    yield {"fills": [Fill(1, 0)]}, "no such output"
    yield {"fills": [Fill(-1, 0)]}, "a row of no output"
    yield {"fills": [Fill(0, 0, ahead=1 << 40)]}, "a row of no output"
    yield {"fills": [Fill(0, 0), Fill(0, 0)]}, "fills by row"
    yield {"fills": [Fill(0, 1)]}, "a draft before it is chosen"
    yield {"fills": [Fill(0, 0, 1)]}, "a row before it is made"
    yield {"fills": [Fill(0, 0, 0, 2)]}, "no such output"
    yield {"fills": [Fill(0, KNOWN, OF_DRAFT)]}, "a row before it is made"
    yield {"feeds": {"other": ("hidden",)}}, "slots that the graph does not have"
    yield {"feeds": {"hidden": ("logits",)}}, "a slot is fed by outputs of its width"
    yield {"feeds": {"hidden": ("gone",)}}, "a slot is fed by outputs of its width"
    yield {"feeds": {"hidden": ()}}, "a slot is fed by outputs of its width"
    yield {"picks": [Pick(1, 1)]}, "no such output"
    yield {"picks": [Pick(0, 2)]}, "no such draft"
    yield {"picks": [Pick(0, 0)]}, "a draft that is chosen elsewhere"
    yield {"picks": [Pick(0, 1), Pick(0, 1)]}, "a draft that is chosen elsewhere"
    yield {"picks": []}, "a draft that nothing chooses"
    yield {"repeats": 1}, "a row before it is made"
    yield {"repeats": 1, "fills": [Fill(0, 0, KNOWN)]}, "a draft that is chosen elsewhere"


@pytest.mark.parametrize(("fields", "what"), [*wrong_fields()], ids=str)
def test_what_does_not_fit_is_refused(fields, what):
    runners = plans("cpu", 1)
    good = make(CHAIN, runners)
    first, second = good.round.stages
    stages = [first, msgspec.structs.replace(second, **fields)]
    with pytest.raises(BatchError, match=what):
        check(rebuilt(good, stages=stages))
    clear(*runners)


def test_a_slot_that_nothing_feeds_is_refused():
    """Rows of the pass feed it, too, those that are given and new ones."""
    runners = plans("cpu", 1)
    good = make(CHAIN, runners)
    first, second = good.round.stages
    bare = msgspec.structs.replace(good.passes[1].batch, slots={})
    without = [good.passes[0], msgspec.structs.replace(good.passes[1], batch=bare)]
    for rows in ("given", "chain"):
        for fill in (Fill(0, 0), Fill(0, 0, KNOWN)):
            stage = msgspec.structs.replace(second, rows=rows, fills=[fill])
            one = rebuilt(good, stages=[first, stage])
            check(one)
            one = msgspec.structs.replace(one, passes=without)
            if fill.stage == KNOWN:
                with pytest.raises(BatchError, match="a slot that nothing feeds"):
                    check(one)
            else:
                check(one)
    clear(*runners)


def rebuilt(schedule, **fields):
    """Return a schedule with another round."""
    built = msgspec.structs.replace(schedule.round, **fields)
    return msgspec.structs.replace(schedule, round=built)


@pytest.mark.parametrize(
    "nodes",
    [
        [0, 4, 5],  # 4 comes after the best of 0 and 1
        [4, 0, 1],  # which may be as probable, and are to be taken first
        [0, 1, 4, 2],  # which is one of them, once more
        [0, 1, 10],  # which comes after the best of 4 to 7
    ],
)
def test_drafts_to_be_verified_are_a_tree(nodes):
    """Those after which they come may be verified with them."""
    runners = plans("cpu", 1)
    good = make(GROWN, runners)
    *others, last = good.round.bests
    check(rebuilt(good, bests=[*others, last._replace(candidates=[0, 1, *range(4, 8)])]))
    with pytest.raises(BatchError, match="after others that are none of them"):
        check(rebuilt(good, bests=[*others, last._replace(candidates=nodes)]))
    clear(*runners)


@pytest.mark.parametrize(
    "drafts",
    [[(1, PENDING), (0, 0)], [(0, 0), (0, 0)], [(0, PENDING), (0, 1)], [(0, PENDING), (0, -2)]],
)
def test_drafts_after_none_are_refused(drafts):
    runners = plans("cpu", 1)
    good = make(CHAIN, runners)
    with pytest.raises(BatchError, match="a draft of no text"):
        check(rebuilt(good, drafts=[DraftToken(*one) for one in drafts]))
    clear(*runners)
