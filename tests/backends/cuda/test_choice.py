"""Tokens that a plan chooses on the device, against those chosen from logits brought home."""

import msgspec
import numpy as np
import pytest
from harness.search import searching
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from programs import N_VOCAB, WIDTH, head, random_tensors

from mtpcore.backends.base import CHOSEN, CheckedBatch, FusedSampling
from mtpcore.backends.cuda import CudaBackend
from mtpcore.errors import BatchError, SamplingError
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.sampling import Sampler, Sampling, Scratch
from mtpcore.testing import Runner, Weights

N_ROWS, N_LOGITS = 6, 120
SETTINGS = [
    Sampling(temperature=0, top_k=7),
    Sampling(temperature=1.3, seed=8, stream=1),
    Sampling(temperature=0.01, seed=9),
]
RNG = np.random.default_rng(4)
TOKENS = RNG.integers(0, N_VOCAB, N_ROWS).astype(np.int32)
HIDDEN = RNG.normal(size=(N_ROWS, WIDTH)).astype(np.float32)
NOTHING = np.zeros(0, np.int32)


@pytest.fixture(scope="module")
def backend(emulated):
    return CudaBackend(emulated)


@pytest.fixture(scope="module")
def one(backend):
    """A plan whose logits are equal in places, not numbers, and infinite."""

    def edit(matrix):
        matrix[50:60] = matrix[70]
        matrix[3] = np.nan
        matrix[4] = np.inf

    return Runner(backend, *head(N_LOGITS, None, edit), n_batch=N_ROWS)


def rows_of(n, outputs):
    """Return the rows of one sequence from its beginning."""
    places = np.arange(n, dtype=np.int32)
    return CheckedBatch(
        tokens=TOKENS[:n], positions=places[:, None].copy(), seq=np.zeros(n, np.int32),
        place=places, outputs=np.asarray(outputs, np.int32), slots={"hidden": HIDDEN[:n]},
    )  # fmt: skip


def run(one, rows, wanted=None):
    one.memory.reserve({0: (0, len(rows.tokens))})
    try:
        return one.plan.run(msgspec.structs.replace(rows, fused_sampling=wanted), one.memory)
    finally:
        one.memory.rewind(0, 0)


def fused_sampling(n, n_logits=N_LOGITS, ids=None, settings=SETTINGS, without=()):
    """Return who chooses from n rows; those in ``without`` want their logits."""
    scratch = Scratch(n_logits, N_LOGITS + 9)
    samplers = [Sampler(settings[i % len(settings)], scratch) for i in range(n)]
    return FusedSampling(
        samplers=[None if i in without else one for i, one in enumerate(samplers)],
        indices=[7 * i for i in range(n)],
        token_ids=ids,
    )


def chosen_from(logits, wanted):
    return [
        -1 if sampler is None else sampler.choose(row, NOTHING, 0, index, wanted.token_ids)
        for row, sampler, index in zip(logits, wanted.samplers, wanted.indices, strict=True)
    ]


@searching(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.integers(1, N_ROWS), st.sampled_from([None, 0, 9]))
def test_tokens_are_those_of_logits_at_home(one, data, n, shift):
    """Any rows wanted, by any name, and any of their logits; all other outputs are the same."""
    outputs = sorted(data.draw(st.sets(st.integers(0, n - 1))))
    without = data.draw(st.sets(st.integers(0, n - 1)))
    ids = None if shift is None else np.arange(N_LOGITS, dtype=np.int32)[::-1] + np.int32(shift)
    ids = ids if ids is None else np.ascontiguousarray(ids)
    wanted, rows = fused_sampling(len(outputs), ids=ids, without=without), rows_of(n, outputs)
    plain, made = run(one, rows), run(one, rows, wanted)
    assert made.keys() == {*plain, CHOSEN}
    assert np.array_equal(made["hidden"], plain["hidden"])
    assert made[CHOSEN].dtype == np.int32
    assert made[CHOSEN].tolist() == chosen_from(plain["logits"], wanted)
    kept = plain["logits"][[i for i in range(len(outputs)) if i in without]]
    assert np.array_equal(made["logits"], kept, equal_nan=True)


def test_logits_of_chosen_rows_stay_on_the_device(one, backend, monkeypatch):
    """All that comes home are tokens, and logits that were asked for."""
    read, n_bytes = backend.device.read, []

    def count(array, at, n):
        n_bytes.append(n)
        return read(array, at, n)

    monkeypatch.setattr(backend.device, "read", count)
    for without, n_reads in (((), 0), ((0,), 1), ((1, 2), 1), ((0, 2), 2), ((0, 1, 2), 1)):
        n_bytes.clear()
        run(one, rows_of(4, [0, 2, 3]), fused_sampling(3, without=without))
        assert len(n_bytes) == n_reads + (len(without) < 3)
        assert sum(n_bytes) == 4 * (3 - len(without) + len(without) * N_LOGITS)


def test_other_outputs_may_be_made_of_the_logits(backend):
    tensors = random_tensors(2, embd=(N_VOCAB, WIDTH), head=(N_VOCAB, WIDTH))
    g = GraphBuilder("tiny", tensors)
    hidden = g.embed(g.inputs.tokens, "embd.weight")
    logits = g.scale(g.matmul(g.output_rows(hidden), "head.weight"), 3.0)
    program = g.finish(Outputs(logits, soft=g.scale(logits, 0.5)))
    plan = backend.plan(program, Weights(tensors), n_batch=16, n_ctx=16, threads=1, stores=())
    rows = msgspec.structs.replace(rows_of(3, [0, 2]), slots={})
    plain, wanted = plan.run(rows, None), fused_sampling(2, N_VOCAB)
    made = plan.run(msgspec.structs.replace(rows, fused_sampling=wanted), None)
    assert made[CHOSEN].tolist() == chosen_from(plain["logits"], wanted)
    assert made["logits"].shape == (0, N_VOCAB)
    assert np.array_equal(made["soft"], plain["soft"])


def test_names_of_tokens_may_change_from_run_to_run(one):
    """Also in the array itself, which the caller keeps."""
    rows, ids = rows_of(2, [0, 1]), np.arange(N_LOGITS, dtype=np.int32)
    plain = run(one, rows)["logits"]
    for shift in (0, 5, 5, 9):
        ids[:] = np.arange(N_LOGITS) + shift
        for wanted in (fused_sampling(2, ids=ids), fused_sampling(2)):
            assert run(one, rows, wanted)[CHOSEN].tolist() == chosen_from(plain, wanted)


def test_choices_that_do_not_fit_are_errors(one):
    good, rows = fused_sampling(2), rows_of(3, [0, 2])
    ids = np.full(N_LOGITS, N_LOGITS + 9, np.int32)
    with_cuts = fused_sampling(2, settings=[SETTINGS[0], Sampling(seed=1, top_k=3)])
    for_hosts = fused_sampling(2, settings=[SETTINGS[0], Sampling(seed=1, top_n_sigma=1.0)])
    for_hosts = msgspec.structs.replace(for_hosts, texts=[NOTHING] * 2, n_prompt=[0, 0])
    for wrong, error in (
        (for_hosts, SamplingError),
        (fused_sampling(1), BatchError),
        (msgspec.structs.replace(good, indices=[1]), BatchError),
        (msgspec.structs.replace(good, indices=[1, 2**32]), SamplingError),
        (msgspec.structs.replace(good, token_ids=ids), SamplingError),
        (msgspec.structs.replace(good, token_ids=ids[1:]), SamplingError),
        (fused_sampling(2, N_LOGITS - 1), SamplingError),
        (with_cuts, SamplingError),
        (msgspec.structs.replace(good, texts=[NOTHING] * 2, n_prompt=[0, 1]), SamplingError),
        (msgspec.structs.replace(good, texts=[NOTHING], n_prompt=[0, 0]), BatchError),
    ):
        with pytest.raises(error):
            run(one, rows, wrong)
    made = run(one, rows, good)
    assert made[CHOSEN].tolist() == chosen_from(run(one, rows)["logits"], good)
