"""Rounds on the device: passes and what verifies them follow each other without the host."""

import gc
import weakref
from functools import partial

import msgspec
import numpy as np
import pytest
from harness.block_runs import after_block, block
from harness.draft_runs import DraftRun, draft_by_definition, run_drafts, scheduled
from harness.head_runs import (
    GREEDY,
    HIDDEN,
    HISTORY,
    IDS,
    N_HEADS,
    clear,
    described,
    hold,
    make_run,
    runners,
)
from harness.hybrids import N_VOCAB as N_HYBRID
from harness.hybrids import hybrid
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st
from programs import N_LOGITS, N_VOCAB, head, post_head

from mtpcore.backends.base import CHOSEN, CheckedBatch, FusedSampling, Verification
from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.cuda import CudaBackend
from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.drafts import DraftLoop
from mtpcore.sampling import Sampler, Sampling, Scratch
from mtpcore.testing import Runner

SAMPLINGS = [
    GREEDY,
    Sampling(temperature=1.3, seed=8, stream=1),
    Sampling(temperature=0.9, seed=3, top_k=7, logit_bias={3: 2.0, 9: -4.0}),
    Sampling(temperature=1.5, seed=4, top_p=0.8, min_p=0.01),
    Sampling(temperature=0, repetition_penalty=3.0, presence_penalty=1.0, frequency_penalty=0.5),
    Sampling(temperature=1.7, seed=6, top_k=5, repetition_penalty=1.3, stream=2),
    Sampling(temperature=0, frequency_penalty=-2.0),  # wants what there was
]
EVERY = [0] * N_HEADS


@pytest.fixture(scope="module")
def heads(emulated):
    return runners(CudaBackend(emulated))


@pytest.fixture(scope="module")
def one(emulated):
    return Runner(CudaBackend(emulated), *head(), n_batch=16)


@pytest.fixture(scope="module")
def target(emulated):
    return Runner(CudaBackend(emulated), *head(seed=77), n_batch=80)


def chain(one, sequences, *, in_place=False, ids=None):
    """Return the run of [(length, k, p_min, sampling)] with one head that goes on by itself."""
    scratch = Scratch(N_LOGITS, N_VOCAB + 3)
    for seq, (length, k, _, _) in enumerate(sequences):
        one.memory.reserve({seq: (0, length + max(k - 1, 0))})
    lengths = [length for length, *_ in sequences]
    place = np.concatenate([np.arange(length) for length in lengths]).astype(np.int32)
    return DraftRun(
        batch=CheckedBatch(
            tokens=HISTORY[place],
            positions=place[:, None].copy(),
            seq=np.repeat(np.arange(len(sequences)), lengths).astype(np.int32),
            place=place,
            outputs=np.cumsum(lengths, dtype=np.int32) - np.int32(1),
            slots={"hidden": HIDDEN[place]},
        ),
        samplers=[Sampler(sampling, scratch) for *_, sampling in sequences],
        history=[HISTORY[:length] for length in lengths],
        n_prompt=[0] * len(sequences),
        k=[k for _, k, _, _ in sequences],
        p_min=[p_min for *_, p_min, _ in sequences],
        recycle={"hidden": "hidden"},
        in_place=in_place,
        token_ids=ids,
    )


@searching(6)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 5),
            st.integers(0, 4),
            st.sampled_from([0.0, 0.0, 0.05, 0.3]),
            st.sampled_from(SAMPLINGS),
        ),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
    st.booleans(),
)
def test_a_chain_of_one_head(one, sequences, in_place, has_ids):
    """Launched, recorded and replayed: the drafts are those of pass after pass."""
    found = []
    for loop in (draft_by_definition, *[run_drafts] * 3):
        run = chain(one, sequences, in_place=in_place, ids=IDS if has_ids else None)
        found.append(loop(one.plan, run, one.memory))
        clear(one)
    assert found[1:] == found[:1] * 3


@searching(6)
@given(
    st.lists(described(SAMPLINGS, [0.0, 0.0, 0.05, 1.0]), min_size=1, max_size=3),
    st.permutations(range(4)),
    st.booleans(),
    st.booleans(),
)
def test_heads_of_each_step(heads, sequences, slots, recycles, has_ids):
    sequences = [(slot, *one) for slot, one in zip(slots, sequences, strict=False)]
    found = []
    for loop in (draft_by_definition, *[run_drafts] * 3):
        run = make_run(heads, sequences, recycles=recycles, ids=IDS if has_ids else None)
        found.append(loop(heads[0].plan, run, heads[0].memory))
        clear(*heads)
    assert found[1:] == found[:1] * 3


@pytest.fixture(scope="module")
def recurrent(emulated):
    return Runner(CudaBackend(emulated), *hybrid(), n_batch=48)


TEXT = HISTORY % N_HYBRID


def recurrent_chain(one, sequences):
    """Return the run of [(held, length, k, p_min, sampling)] that goes on from held rows."""
    scratch, rows = Scratch(N_HYBRID, N_HYBRID), []
    for seq, (held, length, k, *_) in enumerate(sequences):
        if held:
            one.feed(TEXT[:held], seq=seq, place=0, outputs=[])
        one.memory.reserve({seq: (held, length + max(k - 1, 0))})
        rows += [(seq, place) for place in range(held, length)]
    seq, place = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    newest = np.flatnonzero(np.diff(seq, append=-1)).astype(np.int32)
    return DraftRun(
        batch=CheckedBatch(
            tokens=TEXT[place],
            positions=place[:, None].copy(),
            seq=seq,
            place=place,
            outputs=newest,
        ),
        samplers=[Sampler(sampling, scratch) for *_, sampling in sequences],
        history=[TEXT[:length] for _, length, *_ in sequences],
        n_prompt=[0] * len(sequences),
        k=[k for _, _, k, *_ in sequences],
        p_min=[p_min for *_, p_min, _ in sequences],
    )


@pytest.mark.parametrize("p_min", [0.0, 0.045])
@pytest.mark.parametrize(
    "lengths", [((0, 1), (4, 6)), ((0, 14), (19, 20)), ((30, 33), (1, 24))], ids=str
)
def test_a_chain_with_recurrent_layers(recurrent, lengths, p_min):
    """What any number of accepted drafts leaves has the bits that pass after pass leaves."""
    one, k = recurrent, 5
    samplings = SAMPLINGS[1], SAMPLINGS[4]
    sequences = [(*of, k, p_min, by) for of, by in zip(lengths, samplings, strict=True)]
    found = []
    for loop in (draft_by_definition, *[run_drafts] * 3):
        made = [loop(one.plan, recurrent_chain(one, sequences), one.memory)]
        for seq, (_, length) in enumerate(lengths):
            for n in sorted({0, 1, k - 2, k - 1}, reverse=True):
                one.memory.rewind(seq, min(length + n, one.memory.length(seq)))
                n_kept = len(made[0][0][seq]) >= n + 1 and made[0][1] > n
                made.append(one.memory.digest(seq) if n_kept or not n else None)
            logits = one.feed(TEXT[length : length + 3], seq=seq, place=length)["logits"]
            made += [np.asarray(logits).tobytes(), one.memory.digest(seq)]
        found.append(made)
        clear(one)
    assert found[1:] == found[:1] * 3
    drafts, n_passes = found[0][0]
    assert ([*map(len, drafts)] == [k, k]) == (not p_min)
    assert n_passes == k


@searching(10)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 5),
            st.integers(0, 4),
            st.sampled_from([0.0, 0.0, 0.05, 0.3]),
            st.sampled_from(SAMPLINGS),
        ),
        min_size=1,
        max_size=2,
    ),
    st.booleans(),
)
def test_a_block(one, sequences, has_ids):
    """Launched, recorded and replayed: the drafts are those that the host chooses."""
    found = []
    for loop in (draft_by_definition, *[run_drafts] * 3):
        found.append(loop(one.plan, block(one, sequences, IDS if has_ids else None), one.memory))
        clear(one)
    assert found[1:] == found[:1] * 3


@pytest.mark.parametrize("p_min", [0.0, 0.05, 0.15, 0.3])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=range(len(SAMPLINGS)))
def test_a_block_beside_another(one, sampling, p_min):
    """Of each way to choose; a draft that is not probable enough ends its sequence alone."""
    sequences = [(2, 4, p_min, sampling), (3, 3, 0.0, SAMPLINGS[1]), (1, 0, 0.0, sampling)]
    found = []
    for loop in (draft_by_definition, *[run_drafts] * 3):
        found.append(loop(one.plan, block(one, sequences), one.memory))
        clear(one)
    assert found[1:] == found[:1] * 3
    assert len(found[0][0][1]) == 3


def test_drafts_of_a_block_are_in_the_text_of_those_behind_them(one):
    """A penalty that forbids what was drafted already lets nothing be drafted twice."""
    forbids = Sampling(temperature=0, repetition_penalty=1e6)
    drafts, n_passes = run_drafts(one.plan, block(one, [(1, 8, 0.0, forbids)]), one.memory)
    clear(one)
    assert len(set(drafts[0])) == 8
    assert n_passes == 1


@pytest.fixture(scope="module")
def behind(emulated):
    return Runner(CudaBackend(emulated), *post_head(), n_batch=16)


@pytest.mark.parametrize("p_min", [0.0, 0.1])
@pytest.mark.parametrize(("passes", "n_before"), [(0, 0), (1, 0), (2, 1), (9, 1)])
@pytest.mark.parametrize("pair", [SAMPLINGS[:2], SAMPLINGS[2:4], SAMPLINGS[4:6]], ids=range(3))
def test_a_post_head(one, behind, pair, passes, n_before, p_min):
    """Row after row, and all rows in passes: the drafts are those of pass after pass."""
    found = []
    sequences = [(3, 4, p_min, pair[0]), (2, 2, 0.0, pair[1]), (4, 3, p_min, pair[1])]
    ids = IDS if p_min else None
    for loop in (draft_by_definition, *[run_drafts] * 3):
        run = after_block(one, behind, sequences, passes=passes, n_before=n_before, ids=ids)
        found.append(loop(one.plan, run, one.memory))
        clear(one, behind)
    assert found[1:] == found[:1] * 3
    assert p_min or [*map(len, found[0][0])] == [4, 2, 3]


@pytest.mark.parametrize("bad", range(5))
@pytest.mark.parametrize(("passes", "n_before"), [(0, 0), (3, 1)])
def test_a_row_that_is_not_finite_ends_what_a_post_head_drafts(one, behind, bad, passes, n_before):
    """Of that sequence alone, and the row before the first draft's counts."""
    found = []
    for loop in (draft_by_definition, *[run_drafts] * 3):
        sequences = [(3, 3, 0.0, GREEDY), (3, 4, 0.0, GREEDY)]
        run = after_block(one, behind, sequences, passes=passes, n_before=n_before)
        hidden = run.batch.slots["hidden"].copy()
        hidden[5 + 2 - n_before + bad - (bad == 4) * 7] = np.nan
        run = msgspec.structs.replace(
            run, batch=msgspec.structs.replace(run.batch, slots={"hidden": hidden})
        )
        found.append(loop(one.plan, run, one.memory))
        clear(one, behind)
    assert found[1:] == found[:1] * 3
    assert sorted(map(len, found[0][0])) != [3, 4]


def texts_of(tokens, held, first):
    """Return the text before the choice of each row; sequences hold so many rows."""
    ends = [*first[1:], len(tokens)]
    return [
        np.append(HISTORY[:length], tokens[begin : row + 1]).astype(np.int32)
        for length, begin, end in zip(held, first, ends, strict=True)
        for row in range(begin, end)
    ]


def verified(target, run, held, sampling=None):
    """Return the run with its verification; sequences hold so many rows in the target."""
    tokens, place, seq, first = [], [], [], []
    for i, (length, k) in enumerate(zip(held, run.k, strict=True)):
        hold(target, i, length)
        target.memory.reserve({i: (length, length + 1 + k)})
        first.append(len(tokens))
        tokens += [int(HISTORY[length]), *[0] * k]
        place += range(length, length + 1 + k)
        seq += [i] * (1 + k)
    n = len(tokens)
    fused = None
    if sampling is not None:
        scratch = Scratch(N_LOGITS, N_VOCAB)
        fused = FusedSampling(
            samplers=[Sampler(sampling, scratch)] * n,
            indices=[p + 1 for p in place],
            texts=texts_of(tokens, held, first),
            n_prompt=[0] * n,
        )
    batch = CheckedBatch(
        tokens=np.array(tokens, np.int32),
        positions=np.array(place, np.int32)[:, None],
        seq=np.array(seq, np.int32),
        place=np.array(place, np.int32),
        outputs=np.arange(n, dtype=np.int32),
        slots={"hidden": HIDDEN[:n].copy()},
        fused_sampling=fused,
    )
    verification = Verification(plan=target.plan, memory=target.memory, batch=batch, first=first)
    return msgspec.structs.replace(run, verification=verification)


VERIFIED = [
    *(
        (make, sampling)
        for make in (chain, block)
        for sampling in (None, *SAMPLINGS[:2], *SAMPLINGS[-3:])
    ),
    *((make, SAMPLINGS[-2]) for make in (partial(after_block, passes=p) for p in (0, 2))),
]


@pytest.mark.parametrize(("make", "sampling"), VERIFIED)
def test_what_verifies_runs_behind_all_drafts(one, behind, target, sampling, make):
    """Penalties count drafts that are made before it."""
    plans = [one, behind] if isinstance(make, partial) else [one]
    sequences = [(3, 2, 0.0, SAMPLINGS[1]), (5, 3, 0.0, GREEDY), (1, 0, 0.0, GREEDY)]
    held = [2, 4, 70]
    for _ in range(3):
        run = verified(target, make(*plans, sequences), held, sampling)
        drafts, _ = run_drafts(one.plan, run, one.memory)
        made = {name: np.array(rows) for name, rows in run.verification.arrays.items()}
        tokens = run.verification.batch.tokens.copy()
        for first, ids in zip(run.verification.first, drafts, strict=True):
            tokens[first + 1 : first + 1 + len(ids)] = ids
        batch = msgspec.structs.replace(run.verification.batch, tokens=tokens)
        if (fused := batch.fused_sampling) is not None:
            texts = texts_of(tokens, held, run.verification.first)
            fused = msgspec.structs.replace(fused, texts=texts)
            batch = msgspec.structs.replace(batch, fused_sampling=fused)
        wanted = target.plan.run(batch, target.memory)
        assert {*made} == {*wanted} >= {"hidden", "logits" if sampling is None else CHOSEN}
        for name, rows in wanted.items():
            assert made[name].tobytes() == np.asarray(rows).tobytes(), name
        clear(*plans)
    clear(target)


def test_a_sequence_that_has_its_drafts_keeps_no_pass_alive(one):
    """It has the one that it wants, and the only draft of the other is not probable enough."""
    for loop in (draft_by_definition, *[run_drafts] * 3):
        sequences = [(3, 1, 0.0, GREEDY), (2, 3, 1.0, SAMPLINGS[1])]
        drafts, n_passes = loop(one.plan, chain(one, sequences), one.memory)
        assert ([*map(len, drafts)], n_passes) == ([1, 0], 1)
        clear(one)


def test_nothing_is_run_that_nobody_reaches(one, target, monkeypatch):
    """A replayed round ends with its first pass where that makes no draft.

    Where a sequence lacks one, nothing is verified.
    """
    device, launches = one.plan.device, []
    launch = device.launch

    def count(*arguments, **options):
        if device.recorded is None:
            launches.append(arguments)
        launch(*arguments, **options)

    monkeypatch.setattr(device, "launch", count)
    counts = {}
    for p_mins in ((1e-9, 1e-9), (1e-9, 1.0), (1.0, 1.0)):
        for _ in range(3):
            sequences = [(3, 3, p_mins[0], GREEDY), (2, 3, p_mins[1], SAMPLINGS[1])]
            run = verified(target, chain(one, sequences), [2, 1])
            launches.clear()
            drafts, n_passes = run_drafts(one.plan, run, one.memory)
            counts[p_mins] = len(launches), n_passes, [*map(len, drafts)]
            assert (run.verification.arrays is not None) == (max(p_mins) < 1)
            clear(one, target)
    (most, *every), (fewer, *of_one), (few, *none) = counts.values()
    assert (every, of_one, none) == ([3, [3, 3]], [3, [3, 0]], [1, [0, 0]])
    assert few < most / 3
    assert fewer < most


@pytest.mark.parametrize("p_min", [0.0, 1e-9], ids=["any", "probable"])
@pytest.mark.parametrize("penalty", [1.0, 1.3], ids=["at once", "in order"])
@pytest.mark.parametrize(
    ("biases", "n"), [((30.0, 30.0), 1), ((30.0, 0.0), 4), ((0.0, 0.0), 4)], ids=str
)
def test_a_pass_that_changes_nothing_is_the_last(
    emulated, target, monkeypatch, biases, n, penalty, p_min
):
    """Of any sequence, as on the host; if drafts are to be probable, the last one runs, too."""
    programs = head(), post_head(adds=False)
    one, behind = (Runner(CudaBackend(emulated), *of, n_batch=16) for of in programs)
    launch, judging, run_behind = emulated.launch, emulated.load(Kernel("draft")), behind.plan.run
    n_judged, n_run = [], []

    def judge(loaded, *arguments, **options):
        if loaded is judging and emulated.recorded is None:
            n_judged.append(1)
        launch(loaded, *arguments, **options)

    def run_pass(*arguments):
        n_run.append(1)
        return run_behind(*arguments)

    monkeypatch.setattr(emulated, "launch", judge)
    monkeypatch.setattr(behind.plan, "run", run_pass)
    sequences = [
        (4 + i, 5 - i, p_min,
         Sampling(temperature=0.5, seed=1, logit_bias={3: bias}, repetition_penalty=penalty))
        for i, bias in enumerate(biases)
    ]  # fmt: skip
    found, counts = [], []
    for loop in (draft_by_definition, *[run_drafts] * 4):
        run = after_block(one, behind, sequences, passes=9, n_before=1)
        run = run if loop is draft_by_definition else verified(target, run, [3, 4])
        n_judged.clear()
        found.append(loop(one.plan, run, one.memory))
        counts.append(len(n_judged))
        assert loop is draft_by_definition or run.verification.arrays is not None
        clear(one, behind, target)
    assert found[1:] == found[:1] * 4
    assert len(n_run) == n  # of nine, and of five that settle all drafts, which the first run has
    n_steps = 5 if penalty > 1 else 1
    n_wanted = n + 1 if p_min else n
    assert counts[1:] == [n_steps * (1 + passes) for passes in (5, n_wanted, n_wanted, n_wanted)]


@pytest.mark.parametrize("passes", [0, 2])
def test_a_post_head_does_not_run_for_nobody(one, behind, target, passes, monkeypatch):
    """Row by row it ends with the first pass that makes no draft, and nothing is verified."""
    device, n_launches, counts = one.plan.device, [], []
    launch = device.launch

    def count(*arguments, **options):
        n_launches.append(device.recorded is None)
        launch(*arguments, **options)

    monkeypatch.setattr(device, "launch", count)
    for p_min in (1e-9, 1.0):
        for _ in range(3):
            sequences = [(3, 4, p_min, GREEDY), (2, 4, p_min, SAMPLINGS[1])]
            run = after_block(one, behind, sequences, passes=passes)
            run = verified(target, run, [2, 1])
            n_launches.clear()
            drafts, _ = run_drafts(one.plan, run, one.memory)
            counts.append(sum(n_launches))
            assert (run.verification.arrays is not None) == (p_min < 1)
            assert [*map(len, drafts)] == ([4, 4] if p_min < 1 else [0, 0])
            clear(one, behind, target)
    assert counts[-1] < counts[2] / (1 if passes else 2)


def test_a_row_that_is_not_finite_ends_a_sequence_alone(one):
    for _ in range(3):
        run = chain(one, [(2, 3, 0.0, GREEDY), (3, 3, 0.0, GREEDY)])
        run.batch.slots["hidden"][1] = np.nan
        drafts, n_passes = run_drafts(one.plan, run, one.memory)
        assert [*map(len, drafts), n_passes] == [0, 3, 3]
        clear(one)


def test_a_token_without_an_embedding_is_the_last_draft(one):
    """The rows after it run all the same, for nobody: of a token that there is."""
    last = int(IDS.max())
    assert last >= N_VOCAB
    once = Sampling(temperature=0, logit_bias={last: 1e3}, repetition_penalty=1e6)
    for loop in (draft_by_definition, *[run_drafts] * 3):
        run = chain(one, [(3, 3, 0.0, once)], ids=IDS)
        assert loop(one.plan, run, one.memory) == ([[last]], 1)
        tokens = one.plan.arrays[one.plan.program.inputs["tokens"]]
        assert loop is draft_by_definition or one.plan.device.download(tokens, 1).tolist() == [0]
        clear(one)


def test_what_drafts_nothing_is_left_to_the_steps(one, behind):
    def is_here(run):
        return DraftLoop(one.plan).order(scheduled(one.plan, run, one.memory)) is not None

    assert not is_here(chain(one, [(2, 0, 0.0, GREEDY)]))
    assert is_here(chain(one, [(2, 2, 0.0, GREEDY)]))
    assert is_here(after_block(one, behind, [(2, 2, 0.0, GREEDY)]))
    elsewhere = Runner(CpuBackend(), *post_head(), n_batch=16)
    assert not is_here(after_block(one, elsewhere, [(2, 2, 0.0, GREEDY)]))
    clear(one, behind)


def test_a_graph_keeps_the_plans_that_it_launches(emulated):
    """Else another plan might come to stand where one was, and be taken for it."""
    drafter, target = (Runner(CudaBackend(emulated), *head(seed=i), n_batch=16) for i in (0, 77))
    plan = weakref.ref(target.plan)
    run = verified(target, chain(drafter, [(3, 2, 0.0, GREEDY)]), [2])
    run_drafts(drafter.plan, run, drafter.memory)
    del target, run
    gc.collect()
    assert plan() is not None
