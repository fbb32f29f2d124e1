"""A block and its post-head in the compiled draft loop, against the loop in Python."""

from functools import cache

import msgspec
import numpy as np
import pytest
from harness.block_runs import after_block, block
from harness.draft_runs import draft_by_definition, run_drafts, stage_logits
from harness.head_runs import GREEDY, IDS, SAMPLINGS, clear
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st
from programs import N_LOGITS, N_VOCAB, head, post_head

from mtpcore._ext._draft import run
from mtpcore._ext._plan import ORDERS, use_order
from mtpcore.backends.cpu import CpuBackend, backend
from mtpcore.sampling import Sampling
from mtpcore.testing import Runner

pytestmark = pytest.mark.usefixtures("share_small_plans")

SAMPLERS = [
    *SAMPLINGS,
    Sampling(temperature=0.6, seed=7, logit_bias={3: 2.0, 9: -4.0}, presence_penalty=0.5),
    Sampling(temperature=0, frequency_penalty=-2.0),  # wants what there was
]
WAYS = [(0, 0), (1, 0), (2, 1), (9, 1)]
"""Passes of a post-head, and rows of it before the first that chooses."""


@cache
def runners(threads=1, factor=3.0, adds=True):
    """Return a block and a post-head; with a factor, or if it adds, all logits are written."""
    made = head(factor=factor), post_head(adds=adds)
    return [Runner(CpuBackend(), *one, threads=threads, n_batch=48) for one in made]


def compiled(plan, run, memory):
    return run_drafts(plan, run, memory)


def drafts_of(loop, one, after, sequences, passes=None, n_before=0, edit=None, **sizes):
    """Return what a loop drafts, and what it leaves in the block's memory."""
    if passes is None:
        run = block(one, sequences, **sizes)
    else:
        run = after_block(one, after, sequences, passes=passes, n_before=n_before, **sizes)
    found = loop(one.plan, edit(run) if edit else run, one.memory)
    digests = [one.memory.digest(seq) for seq in range(len(sequences))]
    clear(one, after)
    return found, digests


blocks = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.integers(0, 5),
        st.sampled_from([0.0, 0.0, 0.05, 0.3]),
        st.sampled_from(SAMPLERS),
    ),
    min_size=1,
    max_size=3,
)


@searching(60)
@given(blocks, st.sampled_from([(None, 0), *WAYS]), st.booleans(), st.booleans(), st.integers(1, 3))
def test_the_loop_is_the_python_loop(sequences, way, is_written, has_ids, threads):
    """By the block's own logits or after it, where logits are written and where they are not."""
    one, after = runners(threads, 3.0 if is_written else None, is_written)
    sequences = [(n + (3 if k else 0), k, *more) for n, k, *more in sequences]
    ids = IDS if has_ids else None
    found = [
        drafts_of(loop, one, after, sequences, *way, ids=ids)
        for loop in (compiled, draft_by_definition)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("way", [(None, 0), (0, 0), (3, 1)], ids=str)
def test_threads_share_the_choice_among_many_tokens(way):
    """Whichever of them goes first, drafts that end early among them."""
    n_logits = 20_001
    ids = (np.arange(n_logits) % N_VOCAB).astype(np.int32)
    made = head(n_logits), post_head(n_logits=n_logits)
    sampled, cut = SAMPLINGS[0], SAMPLERS[3]
    sequences = [(4, 4, 0.0, sampled), (4, 3, 0.3, sampled), (5, 4, 0.0, cut), (4, 2, 1.0, GREEDY)]
    found = []
    for threads in (1, 3):
        one, after = (Runner(CpuBackend(), *each, threads=threads, n_batch=48) for each in made)
        for order in ORDERS if threads > 1 else ORDERS[:1]:
            use_order(order)
            args = one, after, sequences, *way
            found.append(drafts_of(compiled, *args, ids=ids, n_logits=n_logits))
    found.append(drafts_of(draft_by_definition, *args, ids=ids, n_logits=n_logits))
    assert found[1:] == found[:1] * (len(found) - 1)
    assert [len(drafts) for drafts in found[0][0][0]][::2] == [4, 4]
    assert len(found[0][0][0][1]) < 3


@pytest.mark.parametrize("way", [(None, 0), *WAYS], ids=str)
def test_all_passes_are_one_call(way, monkeypatch):
    calls = []
    monkeypatch.setattr(backend, "run", lambda *given: calls.append("all") or run(*given))
    monkeypatch.setattr(backend.CpuPlan, "run", lambda *given: calls.append("run"))
    one, after = runners(2)
    (drafts, n_passes), _ = drafts_of(compiled, one, after, [(6, 4, 0.0, SAMPLINGS[1])], *way)
    assert [*map(len, drafts)] == [4]
    assert n_passes == 1
    assert calls == ["all"]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLINGS[1]], ids=["greedy", "cut"])
@pytest.mark.parametrize("way", [(0, 0), (3, 0)], ids=str)
def test_logits_that_are_no_numbers_end_drafts(way, sampling):
    """Those after a token whose embedding is none: rows that are read, or logits themselves."""

    def edit(table):
        table[::2] = np.nan

    lengths = []
    for adds in (True, False):
        made = head(), post_head(adds=adds, edit=edit)
        one, after = (Runner(CpuBackend(), *each, n_batch=48) for each in made)
        sequences = [(n, 6, 0.0, sampling) for n in (3, 4, 5)]
        found = [
            drafts_of(loop, one, after, sequences, *way) for loop in (compiled, draft_by_definition)
        ]
        assert found[0] == found[1]
        lengths.append({len(ids) for ids in found[0][0][0]})
    assert max(map(min, lengths)) < 6


@pytest.mark.parametrize("bad", range(5))
@pytest.mark.parametrize(
    ("way", "sampling"),
    [
        ((None, 0), SAMPLINGS[1]),
        *((way, one) for way in [(0, 0), (3, 1)] for one in (SAMPLINGS[1], GREEDY)),
    ],
    ids=range(5),
)
def test_a_row_that_is_not_finite_ends_a_sequence_alone(way, sampling, bad):
    """A row before the first draft's counts, where a post-head reads it.

    Logits that are greedily chosen from are not written, so that nothing but the row says it.
    """
    one, after = runners(2, None, adds=False)

    def spoil(run):
        hidden = run.batch.slots["hidden"].copy()
        hidden[9 + 3 + bad] = np.nan  # of the second sequence, from the row of its pending token on
        return changed(run, slots={"hidden": hidden})

    sequences = [(4, 6, 0.0, sampling), (5, 4, 0.0, sampling)]
    found = [
        drafts_of(loop, one, after, sequences, *way, edit=spoil)
        for loop in (compiled, draft_by_definition)
    ]
    assert found[0] == found[1]
    assert [*map(len, found[0][0][0])] == [6, max(bad - 1, 0)]


def changed(run, **fields):
    return msgspec.structs.replace(run, batch=msgspec.structs.replace(run.batch, **fields))


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLINGS[0]], ids=["greedy", "sampled"])
def test_a_token_without_an_embedding_is_the_last_draft(sampling):
    """In as many passes as row after row; a block that no post-head reads goes on."""
    one, after = runners()
    sequences = [(n, 5, 0.0, sampling) for n in (5, 6, 7)]
    ids = np.where(np.arange(N_LOGITS) % 2 == 1, np.int32(N_VOCAB), IDS)
    wanted = drafts_of(draft_by_definition, one, after, sequences, 0, ids=ids)
    for loop in (compiled, draft_by_definition):
        assert drafts_of(loop, one, after, sequences, 5, ids=ids) == wanted
    drafts, _ = wanted[0]
    assert any(len(ids) < 5 and ids[-1] >= N_VOCAB for ids in drafts)
    assert all(token < N_VOCAB for ids in drafts for token in ids[:-1])
    (alone, _), _ = drafts_of(compiled, one, after, sequences, ids=ids)
    assert [*map(len, alone)] == [5, 5, 5]


@pytest.mark.parametrize(("sampling", "is_written"), [(GREEDY, False), (SAMPLINGS[1], True)])
def test_a_block_writes_logits_only_where_they_are_needed(sampling, is_written):
    one, after = runners(2, None)
    sequences = [(6, 4, 0.0, sampling)]
    for _ in range(2):
        stage_logits(one.plan)[:] = np.nan
        drafts_of(compiled, one, after, sequences)
    assert np.isnan(stage_logits(one.plan)[:4]).all() == (not is_written)


def test_a_block_without_drafts_keeps_its_entries():
    one, after = runners()
    found = [
        drafts_of(loop, one, after, [(5, 0, 0.0, GREEDY), (4, 0, 0.0, GREEDY)], *way)
        for loop in (compiled, draft_by_definition)
        for way in ((None, 0), (0, 0), (3, 1))
    ]
    assert found[1:] == found[:1] * 5
    assert found[0][0] == ([[], []], 1)


def test_a_post_head_for_other_threads_runs_by_the_host():
    one, after = runners()
    sequences = [(5, 4, 0.0, GREEDY), (5, 3, 0.05, SAMPLINGS[1])]
    wanted = drafts_of(compiled, one, after, sequences, 3)
    assert drafts_of(compiled, one, runners(2)[1], sequences, 3) == wanted
