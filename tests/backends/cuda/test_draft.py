"""Drafts chosen on the device, after any text, against those of logits brought home."""

import msgspec
import numpy as np
import pytest
from harness.draft_runs import DraftPass, DraftRun, draft_by_definition, run_drafts
from harness.search import searching
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from programs import N_LOGITS, N_VOCAB, WIDTH, head

from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.cuda import CudaBackend
from mtpcore.backends.cuda.plan import CudaPlan
from mtpcore.sampling import Sampler, Sampling, Scratch
from mtpcore.testing import Runner

RNG = np.random.default_rng(3)
HISTORY = RNG.integers(0, N_VOCAB, 60).astype(np.int32)
HIDDEN = RNG.normal(size=(60, WIDTH)).astype(np.float32)
IDS = RNG.permutation(N_VOCAB + 3)[:N_LOGITS].astype(np.int32)  # some have no embedding
SAMPLINGS = [
    Sampling(temperature=0),
    Sampling(temperature=1.0, seed=5),
    Sampling(temperature=1.7, seed=6, top_k=5, repetition_penalty=1.3, stream=2),
    Sampling(temperature=0.6, seed=7, logit_bias={3: 2.0, 9: -4.0}, presence_penalty=0.5),
    Sampling(temperature=0, repetition_penalty=9.0, presence_penalty=2.0, frequency_penalty=2.0),
    Sampling(temperature=3, seed=8, top_p=0.7, min_p=0.1, frequency_penalty=0.4),
]


@pytest.fixture(scope="module")
def backend(emulated):
    return CudaBackend(emulated)


@pytest.fixture(scope="module")
def one(backend):
    return Runner(backend, *head(), kv_dtype="f32", n_batch=16)


def make_run(memory, sequences, ids=None):
    """Return the run of [(length, k, p_min, sampling)]; its places are reserved."""
    scratch = Scratch(N_LOGITS, N_VOCAB + 3)
    for seq, (length, k, _, _) in enumerate(sequences):
        memory.reserve({seq: (0, length + max(k - 1, 0))})
    place = np.concatenate([np.arange(length) for length, *_ in sequences]).astype(np.int32)
    ends = np.cumsum([length for length, *_ in sequences]) - 1
    seq = np.repeat(np.arange(len(sequences)), [length for length, *_ in sequences])
    return DraftRun(
        batch=CheckedBatch(
            tokens=HISTORY[place],
            positions=place[:, None].copy(),
            seq=seq.astype(np.int32),
            place=place,
            outputs=ends.astype(np.int32),
            slots={"hidden": HIDDEN[place]},
        ),
        samplers=[Sampler(sampling, scratch) for *_, sampling in sequences],
        history=[HISTORY[:length] for length, *_ in sequences],
        n_prompt=[length // 2 for length, *_ in sequences],
        k=[k for _, k, _, _ in sequences],
        p_min=[p_min for *_, p_min, _ in sequences],
        recycle={"hidden": "hidden"},
        token_ids=ids,
    )


def drafted(one, sequences, ids, draft):
    run = make_run(one.memory, sequences, ids)
    try:
        return draft(run)
    finally:
        for seq in range(len(sequences)):
            one.memory.rewind(seq, 0)


@searching(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.integers(1, 5),
            st.integers(0, 4),
            st.sampled_from([0.0, 0.0, 0.1]),
            st.sampled_from(SAMPLINGS),
        ),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
)
def test_drafts_are_those_of_logits_at_home(one, sequences, has_ids):
    """In one launch, as it is recorded and replayed, too, and pass after pass."""
    ids = IDS if has_ids else None

    loops = [*[run_drafts] * 3, draft_by_definition]
    made = [
        drafted(one, sequences, ids, lambda run, loop=loop: loop(one.plan, run, one.memory))
        for loop in loops
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CudaPlan, "run", run_without_choices)
        wanted = drafted(
            one, sequences, ids, lambda run: draft_by_definition(one.plan, run, one.memory)
        )
    assert made == [wanted] * len(loops)


def run_without_choices(plan, batch, memory, run=CudaPlan.run):
    return run(plan, msgspec.structs.replace(batch, fused_sampling=None), memory)


def test_drafts_are_in_the_text_of_those_behind_them(one):
    """A penalty that forbids what was drafted already lets nothing be drafted twice."""
    sampling = Sampling(temperature=0, repetition_penalty=1e6)
    sequences = [(1, 8, 0.0, sampling), (3, 8, 0.0, SAMPLINGS[0])]
    drafts, _ = drafted(one, sequences, None, lambda run: run_drafts(one.plan, run, one.memory))
    assert [len(set(ids)) < 8 for ids in drafts] == [False, True]


def test_logits_come_home_only_where_probabilities_matter(one, backend, monkeypatch):
    read, n_bytes = backend.device.read, []

    def count(array, at, n):
        n_bytes.append(n)
        return read(array, at, n)

    monkeypatch.setattr(backend.device, "read", count)
    for p_min, n_logits in ((0.0, 0), (1e-9, N_LOGITS)):
        n_bytes.clear()
        sequences = [(2, 3, p_min, SAMPLINGS[2]), (1, 3, 0.0, SAMPLINGS[-1])]
        drafts, n = drafted(
            one, sequences, None, lambda run: draft_by_definition(one.plan, run, one.memory)
        )
        assert [*map(len, drafts), n] == [3, 3, 3]
        n_chosen = 1 if p_min else 2
        hidden = 3 + 2 + 2
        assert sum(n_bytes) == 4 * (hidden * WIDTH + 3 * (n_chosen + n_logits))


def test_passes_of_another_backend_choose_for_themselves(one):
    """That backend's samplers have no penalties while they are fused."""
    other = Runner(CpuBackend(), *head(factor=None), kv_dtype="f32", n_batch=16)
    sequences = [(2, 2, 0.0, SAMPLINGS[2])]

    def mixed(run, draft):
        other.memory.reserve({0: (0, 3)})
        later = DraftPass(
            other.plan, other.memory, make_run(other.memory, [(3, 1, 0, SAMPLINGS[0])]).batch
        )
        try:
            return draft(msgspec.structs.replace(run, later=[later]))
        finally:
            other.memory.rewind(0, 0)

    made, wanted = (
        drafted(one, sequences, None, lambda run, draft=draft: mixed(run, draft))
        for draft in (
            lambda run: run_drafts(one.plan, run, one.memory),
            lambda run: draft_by_definition(one.plan, run, one.memory),
        )
    )
    assert made == wanted
