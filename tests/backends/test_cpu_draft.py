"""The compiled draft loop against the loop in Python, token for token."""

import tracemalloc
from functools import partial
from threading import Event, Thread

import msgspec
import numpy as np
import pytest
from harness.draft_runs import DraftRun, draft_by_definition, run_drafts, stage_logits
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st
from programs import N_LOGITS, N_VOCAB, WIDTH, head

from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.errors import BatchError, SamplingError
from mtpcore.sampling import Sampler, Sampling, Scratch
from mtpcore.testing import Runner

pytestmark = pytest.mark.usefixtures("share_small_plans")

RNG = np.random.default_rng(3)
ODD = [np.nan, np.inf, -np.inf, 0.0, 3e38, -3e38]
HISTORY = RNG.integers(0, N_VOCAB, 200).astype(np.int32)
HIDDEN = RNG.normal(size=(200, WIDTH)).astype(np.float32)
IDS = RNG.permutation(N_VOCAB + 3)[:N_LOGITS].astype(np.int32)  # some have no embedding


HEADS = {
    "scaled": head(),
    "direct": head(factor=None),
}
SAMPLINGS = [
    Sampling(temperature=0),
    Sampling(temperature=1.0, seed=5),
    Sampling(temperature=1.7, seed=6, top_k=5, repetition_penalty=1.3, stream=2),
    Sampling(temperature=0.6, seed=7, logit_bias={3: 2.0, 9: -4.0}, presence_penalty=0.5),
]
RACES = [
    Sampling(temperature=0, top_k=7),
    Sampling(temperature=1.3, seed=8, stream=1),
    *SAMPLINGS[:2],
]


def runner(kind, threads=1, which="scaled"):
    return Runner(kind, *HEADS[which], threads=threads, kv_dtype="f32", n_batch=128)


def make_run(memory, sequences, ids=None, n_logits=N_LOGITS):
    """Return the run of [(seq, length, catch up, k, p_min, sampling)]; its places are reserved."""
    scratch = Scratch(n_logits, N_VOCAB + 3)
    seq, place = [], []
    for one, length, n, k, _, _ in sequences:
        seq += [one] * n
        place += range(length, length + n)
        memory.reserve({one: (length, length + n + max(k - 1, 0))})
    place = np.array(place, np.int32)
    ends = np.cumsum([n for _, _, n, _, _, _ in sequences]) - 1
    return DraftRun(
        batch=CheckedBatch(
            tokens=HISTORY[place],
            positions=place[:, None].copy(),
            seq=np.array(seq, np.int32),
            place=place,
            outputs=ends.astype(np.int32),
            slots={"hidden": HIDDEN[place]},
        ),
        samplers=[Sampler(sampling, scratch) for *_, sampling in sequences],
        history=[HISTORY[: length + n] for _, length, n, *_ in sequences],
        n_prompt=[length // 2 for _, length, *_ in sequences],
        k=[k for *_, k, _, _ in sequences],
        p_min=[p_min for *_, p_min, _ in sequences],
        recycle={"hidden": "hidden"},
        token_ids=ids,
    )


sequences = st.lists(
    st.tuples(
        st.integers(0, 90),
        st.integers(1, 12),
        st.integers(0, 8),
        st.sampled_from([0.0, 0.0, 0.05, 0.3, 1.0]),
        st.sampled_from(SAMPLINGS),
    ),
    min_size=1,
    max_size=4,
)
racing = st.lists(
    st.tuples(
        st.integers(0, 90),
        st.integers(1, 12),
        st.integers(0, 8),
        st.just(0.0),
        st.sampled_from(RACES),
    ),
    min_size=1,
    max_size=4,
)
ways = st.one_of(
    st.tuples(st.sampled_from([*HEADS]), sequences),
    st.tuples(st.just("direct"), racing),
)


@searching(60)
@given(ways, st.permutations(range(4)), st.booleans(), st.integers(1, 3))
def test_the_loop_is_the_python_loop(way, slots, with_ids, threads):
    which, described = way
    described = [(slot, *one) for slot, one in zip(slots, described, strict=False)]
    found, digests = [], []
    for compiled in (True, False):
        one = runner(CpuBackend(), threads if compiled else 1, which)
        for seq, length, *_ in described:
            one.memory.reserve({seq: (0, length)})
            if length:
                one.feed(HISTORY[:length], seq=seq, place=0, outputs=[], hidden=HIDDEN[:length])
        run = make_run(one.memory, described, IDS if with_ids else None)
        found.append(run_drafts(one.plan, run, one.memory) if compiled else
                     draft_by_definition(one.plan, run, one.memory))  # fmt: skip
        for i, (seq, length, n, _, _, _) in enumerate(described):
            one.memory.rewind(seq, length + n + max(len(found[-1][0][i]) - 1, 0))
        digests.append([one.memory.digest(seq) for seq, *_ in described])
    assert found[0] == found[1]
    assert digests[0] == digests[1]
    assert all(
        len(drafts) <= k for drafts, (*_, k, _, _) in zip(found[0][0], described, strict=True)
    )


def test_a_loop_takes_no_memory_that_one_before_it_had():
    """Of a history of 800 KB nothing is copied into new memory; longer ones still fit."""
    one = runner(CpuBackend())
    described = [(0, 0, 5, 4, 0.0, SAMPLINGS[1]), (2, 0, 3, 2, 0.0, SAMPLINGS[2])]
    found = []
    for n, bound in ((200_000, None), (200_000, 100_000), (500_000, None), (300_000, 100_000)):
        run = make_run(one.memory, described)
        texts = [np.resize(history, n - i) for i, history in enumerate(run.history)]
        run = msgspec.structs.replace(run, history=texts, n_prompt=[n // 2] * 2)
        tracemalloc.start()
        try:
            found.append(run_drafts(one.plan, run, one.memory))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert bound is None or peak < bound
        for seq in (0, 2):
            one.memory.rewind(seq, 0)
        again = make_run(one.memory, described)
        again = msgspec.structs.replace(again, history=texts, n_prompt=[n // 2] * 2)
        assert found[-1] == draft_by_definition(one.plan, again, one.memory)
        for seq in (0, 2):
            one.memory.rewind(seq, 0)
    assert found[0] == found[1]
    assert list(map(len, found[0][0])) == [4, 2]
    assert found[0][1] == 4


def test_threads_share_the_choice_among_many_tokens():
    """Each thread its part of the row: tokens, and what probabilities decide, are the same."""
    n_logits = 20_001
    program, weights = head(n_logits)
    ids = (np.arange(n_logits) % N_VOCAB).astype(np.int32)  # all have embeddings: drafts go on
    described = [(slot, 0, slot + 1, 6, 0.0, one) for slot, one in enumerate(SAMPLINGS)]
    cut = [(slot, 0, 2, 6, 0.2, one) for slot, one in enumerate(SAMPLINGS)]
    few = [(0, 0, 2, 0, 0.0, SAMPLINGS[1]), (1, 0, 1, 3, 0.0, SAMPLINGS[1])]
    for sequences in (described, cut, few):
        found = []
        for threads in (0, 1, 2, 3):
            one = Runner(
                CpuBackend(), program, weights, threads=threads or 1, kv_dtype="f32", n_batch=16
            )
            run = make_run(one.memory, sequences, ids, n_logits)
            loop = (
                partial(run_drafts, one.plan) if threads else partial(draft_by_definition, one.plan)
            )
            found.append(loop(run, one.memory))
        assert found[1:] == [found[0]] * 3
        lengths = [len(drafts) for drafts in found[0][0]]
        if sequences is cut:
            assert min(lengths) < 6
        else:
            assert lengths == [k for *_, k, _, _ in sequences]


@searching(40)
@given(st.data(), st.sampled_from([33, 600, 1500]), st.integers(1, 3), st.booleans())
def test_tokens_run_while_their_logits_are_made(data, n_logits, threads, repack):
    """Equal logits, infinite ones and NaN, in every thread's columns and pieces of them."""
    rows = st.lists(st.integers(0, n_logits - 1), max_size=40)
    alike = data.draw(rows)
    odd = data.draw(st.dictionaries(st.integers(0, n_logits - 1), st.sampled_from(ODD), max_size=9))
    none = data.draw(st.integers(0, 9)) == 0  # at times every logit is -inf

    def edit(matrix):
        matrix[:] = matrix if not none else -np.inf
        matrix[alike] = matrix[alike[:1]]
        for row, value in odd.items():
            matrix[row] = value

    program, weights = head(n_logits, None, edit, repack)
    ids = (np.arange(n_logits) % N_VOCAB).astype(np.int32)
    described = [(slot, 0, slot + 1, 4, 0.0, one) for slot, one in enumerate(RACES)]
    found = []
    for compiled in (True, False):
        one = Runner(CpuBackend(), program, weights, threads=threads, kv_dtype="f32", n_batch=16)
        run = make_run(one.memory, described, ids, n_logits)
        loop = partial(run_drafts, one.plan) if compiled else partial(draft_by_definition, one.plan)
        found.append(loop(run, one.memory))
    assert found[0] == found[1]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_many_sequences_of_all_kinds_draft_together(threads):
    """More than a unit of rows, of which some race and others are shared among the threads."""
    n_logits = 20_001
    program, weights = head(n_logits, None)
    ids = (np.arange(n_logits) % N_VOCAB).astype(np.int32)
    kinds = [(0.0, RACES[1]), (0.0, SAMPLINGS[2]), (0.05, SAMPLINGS[1]), (0.0, RACES[0])]
    described = [(slot, 0, 1 + slot % 3, 1 + slot % 5, *kinds[slot % 4]) for slot in range(13)]
    found = []
    for compiled in (True, False):
        one = Runner(
            CpuBackend(), program, weights, threads=threads, kv_dtype="f32", n_batch=32, n_seq=13
        )
        run = make_run(one.memory, described, ids, n_logits)
        loop = partial(run_drafts, one.plan) if compiled else partial(draft_by_definition, one.plan)
        found.append(loop(run, one.memory))
    assert found[0] == found[1]
    assert max(map(len, found[0][0])) == 5


@pytest.mark.parametrize(
    ("which", "sampling", "p_min", "are_written"),
    [
        *(("direct", sampling, 0.0, False) for sampling in RACES),
        *(("direct", sampling, 0.0, True) for sampling in SAMPLINGS[2:]),
        *(
            ("direct", Sampling(seed=1, **setting), 0.0, True)
            for setting in (
                {"logit_bias": {3: 2.0}},
                {"presence_penalty": 0.5},
                {"frequency_penalty": 0.5},
                {"repetition_penalty": 1.1},
                {"top_k": 5},
                {"top_p": 0.9},
                {"min_p": 0.1},
            )
        ),
        ("direct", SAMPLINGS[1], 0.1, True),
        ("scaled", SAMPLINGS[1], 0.0, True),
    ],
)
def test_logits_are_written_only_where_they_are_needed(which, sampling, p_min, are_written):
    """Of one sequence; those of another that races are written only if the plan cannot choose."""
    one = runner(CpuBackend(), 2, which)
    described = [(0, 0, 2, 3, p_min, sampling), (1, 0, 3, 3, 0.0, RACES[0])]
    run_drafts(one.plan, make_run(one.memory, described), one.memory)
    logits = stage_logits(one.plan)
    logits[:] = np.nan
    for seq in (0, 1):
        one.memory.rewind(seq, 0)
    run_drafts(one.plan, make_run(one.memory, described), one.memory)
    assert stage_logits(one.plan) is logits
    assert np.isnan(logits[:2]).all(axis=1).tolist() == [not are_written, which == "direct"]


def test_drafts_go_on_to_the_end():
    """The loop is not idle: greedy drafts without a floor are as many as were wanted."""
    one = runner(CpuBackend(), 2)
    run = make_run(one.memory, [(2, 0, 5, 7, 0.0, SAMPLINGS[0]), (0, 0, 1, 3, 0.0, SAMPLINGS[1])])
    drafts, n_passes = run_drafts(one.plan, run, one.memory)
    assert [len(d) for d in drafts] == [7, 3]
    assert n_passes == 7
    other = runner(ReferenceBackend("f32"))
    run = make_run(other.memory, [(2, 0, 5, 7, 0.0, SAMPLINGS[0]), (0, 0, 1, 3, 0.0, SAMPLINGS[1])])
    assert run_drafts(other.plan, run, other.memory) == (drafts, 7)


def test_rows_that_are_not_finite_end_a_sequence_alone():
    one = runner(CpuBackend())
    described = [(0, 0, 2, 4, 0.0, SAMPLINGS[0]), (1, 0, 3, 4, 0.0, SAMPLINGS[0])]
    run = make_run(one.memory, described)
    run.batch.slots["hidden"][1] = np.nan
    drafts, n_passes = run_drafts(one.plan, run, one.memory)
    assert [len(d) for d in drafts] == [0, 4]  # no logit of the first is a number
    assert n_passes == 4


def test_a_token_without_an_embedding_ends_the_drafts():
    one = runner(CpuBackend())
    ids = np.full(N_LOGITS, N_VOCAB, np.int32)
    run = make_run(one.memory, [(0, 0, 2, 4, 0.0, SAMPLINGS[0])], ids)
    assert run_drafts(one.plan, run, one.memory) == ([[N_VOCAB]], 1)


def test_what_does_not_fit_is_an_error():
    one = runner(CpuBackend())
    good = make_run(one.memory, [(0, 0, 2, 4, 0.0, SAMPLINGS[0])])

    def but(**changes):
        fields = {name: getattr(good, name) for name in good.__struct_fields__}
        return DraftRun(**{**fields, **changes})

    for wrong in (
        but(k=[9]),  # places that are not reserved
        but(recycle={"hidden": "logits"}),
    ):
        with pytest.raises(BatchError):
            run_drafts(one.plan, wrong, one.memory)
    for wrong in (
        but(n_prompt=[3]),
        but(token_ids=np.full(N_LOGITS, N_VOCAB + 3, np.int32)),
        but(token_ids=IDS[:-1]),
    ):
        with pytest.raises(SamplingError):
            run_drafts(one.plan, wrong, one.memory)
    assert len(run_drafts(one.plan, good, one.memory)[0][0]) == 4


def test_nobody_chooses_with_the_scratch_of_a_draft_loop():
    """The loop runs without the GIL: another thread may come in between."""
    one, over = runner(CpuBackend()), Event()
    run = make_run(one.memory, [(0, 0, 4, 60, 0.0, SAMPLINGS[1])])
    n_runs, logits = 0, np.zeros(N_LOGITS, np.float32)

    def draft_on():
        nonlocal n_runs
        while not over.is_set() and n_runs < 10_000:
            run_drafts(one.plan, run, one.memory)
            n_runs += 1

    def choose_while(thread):
        while thread.is_alive():
            run.samplers[0].choose(logits, HISTORY[:4], 4, 4)

    thread = Thread(target=draft_on)
    thread.start()
    try:
        with pytest.raises(SamplingError, match="another thread"):
            choose_while(thread)
    finally:
        over.set()
        thread.join()
    run.samplers[0].choose(logits, HISTORY[:4], 4, 4)
