"""A draft loop over several plans, each with a memory of its own, against the loop in Python."""

import msgspec
import numpy as np
import pytest
from harness.draft_runs import DraftPass, draft_by_definition, run_drafts, stage_logits
from harness.head_runs import (
    GREEDY,
    HIDDEN,
    HISTORY,
    IDS,
    N_HEADS,
    SAMPLINGS,
    make_run,
    runners,
    ways,
)
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st
from programs import N_LOGITS, N_VOCAB

from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.errors import BatchError

pytestmark = pytest.mark.usefixtures("share_small_plans")


def compiled(plan, run, memory):
    return run_drafts(plan, run, memory)


@searching(80)
@given(ways, st.permutations(range(4)), st.booleans(), st.booleans(), st.integers(1, 3))
def test_the_loop_is_the_python_loop(way, slots, recycles, with_ids, threads):
    factors, sequences = way
    sequences = [(slot, *one) for slot, one in zip(slots, sequences, strict=False)]
    found, digests = [], []
    for loop in (compiled, draft_by_definition):
        heads = runners(CpuBackend(), threads, factors)
        run = make_run(heads, sequences, recycles=recycles, ids=IDS if with_ids else None)
        drafts, n_passes = loop(heads[0].plan, run, heads[0].memory)
        found.append((drafts, n_passes))
        digests.append([])
        for number in range(n_passes):
            for (slot, pending, _, k, _, _), ids in zip(sequences, drafts, strict=True):
                if k > number:
                    # What stands for a draft is its entry where the sequence got that far.
                    held = pending + 1 + (number if len(ids) > number else 0)
                    heads[number].memory.rewind(slot, held)
                    digests[-1].append(heads[number].memory.digest(slot))
    assert found[0] == found[1]
    assert digests[0] == digests[1]


def test_drafts_go_on_to_the_end_on_both_backends():
    sequences = [(2, 9, [4, 7, 9], 3, 0.0, GREEDY), (0, 3, [0, 0, 0], 2, 0.0, SAMPLINGS[0])]
    found = []
    for backend in (CpuBackend(), ReferenceBackend("f32")):
        heads = runners(backend, 2 if backend.name == "cpu" else 1)
        found.append(run_drafts(heads[0].plan, make_run(heads, sequences), heads[0].memory))
    assert found[0] == found[1]
    assert [len(ids) for ids in found[0][0]] == [3, 2]
    assert found[0][1] == 3


def test_a_head_reads_what_the_one_before_made():
    """The second head's draft is that of its rows with the first draft and its hidden row."""
    heads, again = runners(CpuBackend()), runners(CpuBackend())
    run = make_run(heads, [(0, 5, [0, 0, 0], 2, 0.0, GREEDY)])
    (drafts,), _ = run_drafts(heads[0].plan, run, heads[0].memory)
    made = again[0].feed(HISTORY[:6], place=0, hidden=HIDDEN[:6])
    assert drafts[0] == int(made["logits"][-1].argmax())
    hidden = np.concatenate([HIDDEN[:6], made["hidden"][-1:]])
    made = again[1].feed([*HISTORY[:6], drafts[0]], place=0, hidden=hidden)
    assert drafts[1] == int(made["logits"][-1].argmax())


def test_what_is_given_stays_as_it_is():
    """The loop fills drafts in where it works, not in the caller's rows."""
    heads = runners(CpuBackend())
    run = make_run(heads, [(0, 5, [0, 0, 0], 3, 0.0, GREEDY)])
    before = [(one.batch.tokens.copy(), one.batch.slots["hidden"].copy()) for one in run.later]
    run_drafts(heads[0].plan, run, heads[0].memory)
    for one, (tokens, hidden) in zip(run.later, before, strict=True):
        assert np.array_equal(one.batch.tokens, tokens)
        assert np.array_equal(one.batch.slots["hidden"], hidden)


def test_rows_that_are_not_finite_end_a_sequence_alone():
    heads = runners(CpuBackend())
    every = [0, 0, 0]
    run = make_run(heads, [(0, 2, every, 3, 0.0, GREEDY), (1, 3, every, 3, 0.0, GREEDY)])
    run.batch.slots["hidden"][2] = np.nan
    drafts, n_passes = run_drafts(heads[0].plan, run, heads[0].memory)
    assert [len(ids) for ids in drafts] == [0, 3]  # no logit of the first is a number
    assert n_passes == 3


def test_nobody_runs_what_nobody_reaches():
    heads = runners(CpuBackend())
    run = make_run(heads, [(0, 2, [0, 0, 0], 3, 0.0, GREEDY)], ids=np.full(N_LOGITS, N_VOCAB, "i4"))
    assert run_drafts(heads[0].plan, run, heads[0].memory) == ([[N_VOCAB]], 1)


@pytest.mark.parametrize("loop", [compiled, draft_by_definition])
def test_passes_that_do_not_fit_are_an_error(loop):
    heads = runners(CpuBackend())
    sequences = [(0, 4, [0, 2, 1], 3, 0.0, GREEDY), (1, 6, [3, 3, 3], 2, 0.0, GREEDY)]
    good = make_run(heads, sequences)

    def with_rows(number, **changes):
        one = good.later[number - 1]
        rows = msgspec.structs.replace(one.batch, **changes)
        later = list(good.later)
        later[number - 1] = DraftPass(one.plan, one.memory, rows)
        return msgspec.structs.replace(good, later=later)

    second = good.later[0].batch
    for wrong in (
        msgspec.structs.replace(good, k=[4, 2]),
        msgspec.structs.replace(good, k=[3, 3]),  # the third has one output too few
        with_rows(1, outputs=second.outputs[:1].copy()),
    ):
        with pytest.raises(BatchError):
            loop(heads[0].plan, wrong, heads[0].memory)
    assert [len(ids) for ids in loop(heads[0].plan, good, heads[0].memory)[0]] == [3, 2]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_no_pass_writes_logits_that_nobody_needs(sampling):
    heads = runners(CpuBackend(), 2)
    for _ in range(2):
        run = make_run(heads, [(0, 4, [0, 2, 1], 3, 0.0, sampling)])
        for one in heads:
            stage_logits(one.plan)[:] = np.nan
        run_drafts(heads[0].plan, run, heads[0].memory)
        for one in heads:
            one.memory.rewind(0, 0)
    is_gumbel_max = sampling is not SAMPLINGS[1]
    assert [np.isnan(stage_logits(one.plan)).all() for one in heads] == [is_gumbel_max] * N_HEADS


@pytest.mark.parametrize("other", [lambda: runners(ReferenceBackend("f32")),
                                   lambda: runners(CpuBackend(), 1)])  # fmt: skip
def test_passes_of_other_plans_run_one_by_one(other):
    found = []
    for mixed in (True, False):
        heads = runners(CpuBackend(), 2)
        heads = [heads[0], *other()[1:]] if mixed else heads
        run = make_run(heads, [(0, 4, [0, 2, 1], 3, 0.0, GREEDY)])
        found.append(run_drafts(heads[0].plan, run, heads[0].memory))
    assert found[0] == found[1]
    assert len(found[0][0][0]) == 3
