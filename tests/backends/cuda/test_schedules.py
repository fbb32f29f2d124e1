"""Schedules of no shape that has a name, on the device and by their definition."""

import msgspec
import numpy as np
import pytest
from harness.head_runs import GREEDY, HIDDEN, HISTORY, IDS, clear
from harness.random_schedules import (
    AFTER_A_DEAD_ROW,
    AFTER_ITS_OWN,
    GROWN,
    HEADS,
    LINKED,
    MOVED_UP,
    NONE_ANEW,
    SETTINGS,
    WITHOUT_FILLS,
    Drawn,
    DrawnStage,
    best_of_many,
    make,
    schedules,
)
from harness.search import searching
from harness.verifications import check_verified, with_verification
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from programs import N_LOGITS, N_VOCAB, WIDTH, head, random_tensors

from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.cuda import CudaBackend
from mtpcore.backends.cuda.drafts import DraftLoop
from mtpcore.backends.draft import run_schedule
from mtpcore.backends.schedule import (
    KNOWN,
    OF_DRAFT,
    PENDING,
    DraftToken,
    Fill,
    Pass,
    Pick,
    Round,
    Schedule,
    Stage,
    Text,
)
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.sampling import Sampler, Sampling, Scratch
from mtpcore.testing import Runner, Weights

SAMPLINGS = [
    GREEDY,
    Sampling(temperature=1.3, seed=8, stream=1),
    Sampling(temperature=0, repetition_penalty=3.0, presence_penalty=1.0),
    Sampling(temperature=1.7, seed=6, top_k=5, repetition_penalty=1.3, stream=2),
]
FED = {"hidden": ("hidden",)}


def passing():
    """Return a graph that hands its slot on, and whose logits are of its tokens alone."""
    tensors = random_tensors(5, embd=(N_VOCAB, WIDTH), head=(N_LOGITS, WIDTH))
    g = GraphBuilder("passing", tensors, slots={"hidden": WIDTH})
    x = g.output_rows(g.embed(g.inputs.tokens, "embd.weight"))
    made = Outputs(g.matmul(x, "head.weight"), hidden=g.scale(g.inputs["hidden"], 1.0))
    return g.finish(made), Weights(tensors)


@pytest.fixture(scope="module")
def graphs(emulated):
    made = head(seed=9), head(seed=20), passing()
    return [Runner(CudaBackend(emulated), *one, n_batch=32) for one in made]


class Rows:
    """Rows of sequences, at the next places of the memory of a graph."""

    def __init__(self, one):
        self.one, self.ends = one, {}

    def batch(self, counts, **slots):
        """Return so many new rows of each sequence; all of them are outputs."""
        seq, place = [], []
        for text, n in counts:
            begin = self.ends.get(text, 0)
            self.ends[text] = begin + n
            self.one.memory.reserve({text: (begin, begin + n)})
            seq += [text] * n
            place += range(begin, begin + n)
        place = np.array(place, np.int32)
        return CheckedBatch(
            tokens=HISTORY[place],
            positions=place[:, None].copy(),
            seq=np.array(seq, np.int32),
            place=place,
            outputs=np.arange(len(seq), dtype=np.int32),
            slots=slots,
        )


def schedule_of(graphs, texts, later, *, repeats=0, bad=99, ids=False):
    """Return a schedule that begins with a block of so many drafts of each (k, p_min, sampling).

    The last graph may choose these anew, from rows that get the draft before and the block's row.
    Of each later stage (graph, is_branch, is_of_draft, texts) the rows get the last drafts of these
    texts, or the first ones, and the row that chose them, or the last one of the text in the block.
    Row ``bad`` of the block, if there are so many, reads what is not finite.
    """
    scratch, rows = Scratch(N_LOGITS, N_VOCAB + 3), [Rows(one) for one in graphs]
    batch = rows[0].batch([(i, k) for i, (k, *_) in enumerate(texts)])
    hidden = HIDDEN[batch.place].copy()
    hidden[bad : bad + 1] = np.nan
    batch = rows_with(batch, hidden)
    drafts, own = [], [[] for _ in texts]
    for i, (k, *_) in enumerate(texts):
        for j in range(k):
            own[i].append(len(drafts))
            drafts.append(DraftToken(i, own[i][j - 1] if j else PENDING))
    picks = [Pick(n, n) for n in range(len(drafts))]
    passes, stages = [pass_of(graphs[0], batch)], [Stage(picks=picks)]
    if repeats:
        before = [KNOWN if parent == PENDING else parent for _, parent in drafts]
        fills = [Fill(n, draft, 0, n) for n, draft in enumerate(before)]
        batch = rows[2].batch([(i, k) for i, (k, *_) in enumerate(texts)])
        passes.append(pass_of(graphs[2], batch))
        stages.append(Stage(graph=1, fills=fills, picks=picks, feeds=FED, repeats=repeats))
    for graph, is_branch, is_of_draft, which in later:
        which = sorted({i % len(texts) for i in which})
        fills, picks = [], []
        for row, i in enumerate(which):
            before = own[i][0 if is_branch else -1]
            source = (OF_DRAFT, 0) if is_of_draft else (0, own[i][texts[i][0] - 1])
            fills.append(Fill(row, before, *source))
            picks.append(Pick(row, len(drafts)))
            own[i].append(len(drafts))
            drafts.append(DraftToken(i, before))
        batch = rows[graph].batch([(i, 1) for i in which])
        stages.append(Stage(graph=len(passes), fills=fills, feeds=FED, picks=picks))
        passes.append(pass_of(graphs[graph], batch))
    return Schedule(
        round=Round(stages=stages, drafts=drafts),
        passes=passes,
        texts=[
            Text(Sampler(sampling, scratch), HISTORY[: 3 + i], 1, 3 + i, p_min)
            for i, (_, p_min, sampling) in enumerate(texts)
        ],
        token_ids=IDS if ids else None,
    )


def pass_of(one, batch):
    return Pass(plan=one.plan, memory=one.memory, batch=batch)


def rows_with(batch, hidden):
    """Return a batch with hidden rows."""
    assert hidden.shape[1] == WIDTH
    batch.slots["hidden"] = hidden
    return batch


@searching(25)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from([0.0, 0.0, 0.05]), st.sampled_from(SAMPLINGS)),
        min_size=2,
        max_size=3,
    ),
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.booleans(),
            st.booleans(),
            st.lists(st.integers(0, 2), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 12),
    st.sampled_from([0, 0, 1, 3, 4]),
    st.booleans(),
)
def test_any_stages_after_each_other(graphs, texts, later, bad, repeats, ids):
    """Launched, recorded and replayed: the drafts are those of the definition."""
    bad = 99 if repeats else bad  # what is not finite is none there, whatever the block chose
    found = []
    plan = graphs[0].plan
    for run in (run_schedule, *[plan.run_schedule] * 3):
        schedule = schedule_of(graphs, texts, later, repeats=repeats, bad=bad, ids=ids)
        assert DraftLoop(plan).order(schedule) is not None
        found.append(run(schedule))
        clear(*graphs)
    assert [one.tokens for one in found[1:]] == [found[0].tokens] * 3
    # The device asks `p_min` at once of what is chosen anew.
    assert repeats or found[1:] == found[:1] * 3


@pytest.fixture(scope="module")
def heads(emulated):
    """The heads that random schedules run, one a stage."""
    backend = CudaBackend(emulated)
    return [Runner(backend, *HEADS[i % 3], kv_dtype="f32", n_batch=32) for i in range(4)]


@pytest.fixture(scope="module")
def target(emulated):
    """What verifies the drafts of random schedules; a sequence holds more rows than a page."""
    return Runner(CudaBackend(emulated), *head(seed=77), n_batch=80)


def apart(drawn):
    """Return what was drawn with a plan for each pass, up to the last stage that chooses.

    So a device can run it: it brings all rows before the first pass.
    """
    stages = []
    for number, stage in enumerate(drawn.stages):
        plan = number if stage.form == "given" else stages[stage.after].plan
        stages.append(msgspec.structs.replace(stage, plan=plan))
    while len(stages) > 1 and not stages[-1].picks:
        stages.pop()
    return msgspec.structs.replace(drawn, stages=stages)


# A row that gets what is finite comes after one that gets what is not.
DEAD_ABOVE = Drawn(
    stages=[
        DrawnStage(0, [(0, None, None, 0), (1, None, None, 0)], [], 0, False, False),
        DrawnStage(1, [(0, None, 0, 0), (0, None, 0, 1)], [(1, 0)], 0, False, False),
    ],
    drafts=[(0, PENDING)],
    texts=[(0, 0.0)] * 2,
    is_broken=True,
)


@searching(60, suppress_health_check=[HealthCheck.too_slow])
@given(schedules())
@example(DEAD_ABOVE)
@example(WITHOUT_FILLS)
@example(AFTER_ITS_OWN)
@example(AFTER_A_DEAD_ROW)
@example(NONE_ANEW)
@example(MOVED_UP)
@example(LINKED)
@example(msgspec.structs.replace(GROWN, texts=[(0, 0.0)]))
@example(msgspec.structs.replace(GROWN, texts=[(1, 0.0)]))
@example(best_of_many())
@example(msgspec.structs.replace(GROWN, verified=([5], -1)))
@example(msgspec.structs.replace(GROWN, verified=([62], 2)))
def test_random_schedules_are_those_of_the_definition(heads, target, drawn):
    """Those that the device runs, with what verifies them; others are left to the host."""
    found = []
    for is_compiled in (False, True, True):
        schedule, batch = make(apart(drawn), heads), None
        if drawn.verified and schedule.round.drafts:
            held, by = drawn.verified
            sampling = None if by < 0 else SETTINGS[by]
            schedule, batch = with_verification(schedule, target, held, sampling)
        plan = schedule.passes[0].plan
        found.append((plan.run_schedule if is_compiled else run_schedule)(schedule))
        if batch is not None:
            check_verified(schedule, batch, found[-1])
        clear(*heads, target)
    assert [one.tokens for one in found[1:]] == [found[0].tokens] * 2
    repeats = any(stage.repeats for stage in schedule.round.stages)
    assert repeats or found[1:] == found[:1] * 2


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("chooses", [True, False], ids=["drafts first", "rows first"])
def test_a_row_that_is_not_finite_ends_drafts_whose_logits_are(graphs, n, chooses):
    """Of its text alone; where a draft came before, nothing is run for it."""
    one, found = graphs[2], []
    for run in (run_schedule, *[one.plan.run_schedule] * 3):
        rows, scratch = Rows(one), Scratch(N_LOGITS, N_VOCAB)
        batches = [rows.batch([(i, 1) for i in range(n)]) for _ in range(2)]
        hidden = HIDDEN[:n].copy()
        hidden[0, 3] = np.nan
        first = Stage()
        passes = [pass_of(one, rows_with(batches[0], hidden)), pass_of(one, batches[1])]
        drafts = [DraftToken(i, PENDING) for i in range(n)]
        fills = [Fill(i, KNOWN, 0, i) for i in range(n)]
        if chooses:
            first = msgspec.structs.replace(first, picks=[Pick(i, i) for i in range(n)])
            drafts += [DraftToken(i, i) for i in range(n)]
            fills = [Fill(i, i) for i in range(n)]
        picks = [Pick(i, len(drafts) - n + i) for i in range(n)]
        second = Stage(graph=1, fills=fills, feeds=FED, picks=picks)
        texts = [Text(Sampler(GREEDY, scratch), HISTORY[:1], 1, 1) for _ in range(n)]
        built = Round(stages=[first, second], drafts=drafts)
        schedule = Schedule(round=built, passes=passes, texts=texts)
        assert DraftLoop(one.plan).order(schedule) is not None
        found.append(run(schedule))
        clear(one)
    ends = [token < 0 for token in found[0].tokens]
    assert ends == [False] * n * chooses + [True] + [False] * (n - 1)
    assert found[1:] == found[:1] * 3


@pytest.mark.parametrize(
    ("bad", "p_min", "first_id", "n"),
    [(0, 0.0, 0, 0), (1, 2.0, 0, 0), (1, 0.0, N_VOCAB, 1), (1, 0.0, 0, 3)],
    ids=["none", "improbable", "without embedding", "every draft"],
)
@pytest.mark.parametrize("whole", [False, True], ids=["those that choose", "whole"])
def test_rows_that_may_not_have_run_feed_no_others(graphs, bad, p_min, first_id, n, whole):
    """The last stage reads a row of one that runs only if the first draft is there."""
    one, found = graphs[0], []
    for run in (run_schedule, *[one.plan.run_schedule] * 3):
        rows, scratch = Rows(one), Scratch(N_LOGITS, first_id + N_LOGITS)
        begin, after, last = (rows.batch([(0, 1)]) for _ in range(3))
        hidden = HIDDEN[:1].copy()
        hidden[bad:] = np.nan
        built = Round(
            stages=[
                Stage(picks=[Pick(0, 0)]),
                Stage(graph=1, fills=[Fill(0, 0)], feeds=FED, picks=[Pick(0, 1)], runs_whole=whole),
                Stage(graph=2, fills=[Fill(0, KNOWN, 1, 0)], feeds=FED, picks=[Pick(0, 2)]),
            ],
            drafts=[DraftToken(0, PENDING), DraftToken(0, 0), DraftToken(0, PENDING)],
        )
        batches = rows_with(begin, hidden), after, last
        schedule = Schedule(
            round=built,
            passes=[pass_of(one, batch) for batch in batches],
            texts=[Text(Sampler(GREEDY, scratch), HISTORY[:1], 1, 1, p_min)],
            token_ids=np.arange(first_id, first_id + N_LOGITS, dtype=np.int32),
        )
        assert DraftLoop(one.plan).order(schedule) is not None
        found.append(run(schedule))
        clear(one)
    assert found[1:] == found[:1] * 3
    assert [token >= 0 for token in found[0].tokens] == [i < n for i in range(3)]


def handing_on():
    """Return a graph that hands two slots on, and whose logits are of its tokens alone."""
    tensors = random_tensors(5, embd=(N_VOCAB, WIDTH), head=(N_LOGITS, WIDTH))
    slots = {"hidden": WIDTH, "other": WIDTH}
    g = GraphBuilder("handing on", tensors, slots=slots)
    x = g.output_rows(g.embed(g.inputs.tokens, "embd.weight"))
    made = {slot: g.scale(g.inputs[slot], 1.0) for slot in slots}
    return g.finish(Outputs(g.matmul(x, "head.weight"), **made)), Weights(tensors)


@pytest.mark.parametrize("read", ["hidden", "other"])
def test_a_row_that_is_not_finite_ends_those_that_read_it(emulated, read):
    """A row of two outputs feeds two stages: only that one ends whose slot is not finite."""
    graphs = [Runner(CudaBackend(emulated), *handing_on(), n_batch=16) for _ in range(3)]
    found = []
    for run in (run_schedule, *[graphs[0].plan.run_schedule] * 3):
        scratch, passes, stages = Scratch(N_LOGITS, N_VOCAB), [], []
        for number, one in enumerate(graphs):
            batch = Rows(one).batch([(0, 1)], hidden=HIDDEN[:1].copy(), other=HIDDEN[1:2].copy())
            if not number:
                batch.slots[read][0, 3] = np.nan
            passes.append(pass_of(one, batch))
        stages = [
            Stage(),
            *(
                Stage(
                    graph=number + 1,
                    fills=[Fill(0, KNOWN, 0, 0)],
                    feeds={slot: (slot,)},
                    picks=[Pick(0, number)],
                )
                for number, slot in enumerate(("hidden", "other"))
            ),
        ]
        drafts = [DraftToken(0, PENDING)] * 2
        texts = [Text(Sampler(GREEDY, scratch), HISTORY[:1], 1, 1)]
        built = Round(stages=stages, drafts=drafts)
        schedule = Schedule(round=built, passes=passes, texts=texts)
        assert DraftLoop(graphs[0].plan).order(schedule) is not None
        found.append(run(schedule))
        clear(*graphs)
    assert [token >= 0 for token in found[0].tokens] == [read != "hidden", read != "other"]
    assert found[1:] == found[:1] * 3


@pytest.fixture(scope="module")
def seeing(emulated):
    """A graph whose rows see those after them."""
    return Runner(CudaBackend(emulated), *head(seed=3, mask="block"), n_batch=16)


@pytest.mark.parametrize("brings", [True, False], ids=["rows brought", "rows left out"])
def test_other_rows_than_planned_are_left_to_the_host(graphs, seeing, brings):
    """The second stage brings rows of its own, or goes without that of a draft that is none.

    A device uploads what all stages bring before the first one runs, and runs all of their rows.
    """
    one, found = graphs[0], []
    other = one if brings else seeing
    for run in (run_schedule, one.plan.run_schedule):
        rows, scratch = Rows(one), Scratch(N_LOGITS, N_VOCAB)
        hidden = HIDDEN[:2].copy()
        hidden[1] = hidden[1] if brings else np.nan
        passes = [pass_of(one, rows_with(rows.batch([(0, 2)]), hidden))]
        first = Stage(picks=[Pick(0, 0), Pick(1, 1)])
        if brings:
            batch = rows_with(rows.batch([(0, 1)]), HIDDEN[7:8].copy())
            second = Stage(graph=1, fills=[Fill(0, 0, KNOWN)], picks=[Pick(0, 2)])
        else:
            batch, fills = Rows(other).batch([(0, 2)]), [Fill(0, 0), Fill(1, 1)]
            second = Stage(graph=1, fills=fills, feeds=FED, picks=[Pick(0, 2)])
        drafts = [DraftToken(0, PENDING), DraftToken(0, 0), DraftToken(0, 0)]
        schedule = Schedule(
            round=Round(stages=[first, second], drafts=drafts),
            passes=[*passes, pass_of(other, batch)],
            texts=[Text(Sampler(GREEDY, scratch), HISTORY[:1], 1, 1)],
        )
        assert DraftLoop(one.plan).order(schedule) is None
        found.append(run(schedule))
        clear(one, other)
    assert found[0] == found[1]
    assert [token >= 0 for token in found[0].tokens] == [True, brings, True]
