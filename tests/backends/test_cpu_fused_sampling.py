"""Tokens that are chosen while their logits are made, against those chosen from written logits."""

import msgspec
import numpy as np
import pytest
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st
from programs import N_LOGITS, N_VOCAB, WIDTH, head, random_tensors

from mtpcore.backends.base import CHOSEN, CheckedBatch, FusedSampling
from mtpcore.backends.cpu import CpuBackend
from mtpcore.errors import BatchError, SamplingError
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.sampling import Sampler, Sampling, Scratch
from mtpcore.testing import Runner, Weights

pytestmark = pytest.mark.usefixtures("share_small_plans")

N_ROWS = 150
ODD = [np.nan, np.inf, -np.inf, 0.0, 3e38, -3e38]
RACES = [
    Sampling(temperature=0, top_k=7),
    Sampling(temperature=1.3, seed=8, stream=1),
    Sampling(temperature=0.01, seed=9),
]
RNG = np.random.default_rng(4)
TOKENS = RNG.integers(0, N_VOCAB, N_ROWS).astype(np.int32)
HIDDEN = RNG.normal(size=(N_ROWS, WIDTH)).astype(np.float32)
NOTHING = np.zeros(0, np.int32)


def rows_of(n, outputs):
    """Return the rows of one sequence from its beginning."""
    places = np.arange(n, dtype=np.int32)
    return CheckedBatch(
        tokens=TOKENS[:n], positions=places[:, None].copy(), seq=np.zeros(n, np.int32),
        place=places, outputs=np.asarray(outputs, np.int32), slots={"hidden": HIDDEN[:n]},
    )  # fmt: skip


def run(one, rows):
    one.memory.reserve({0: (0, len(rows.tokens))})
    try:
        return one.plan.run(rows, one.memory)
    finally:
        one.memory.rewind(0, 0)


def fused_sampling(n, n_logits, ids=None, settings=RACES, written=()):
    """Return who chooses from n rows; those in ``written`` want their logits."""
    scratch = Scratch(n_logits, N_VOCAB)
    samplers = [Sampler(settings[i % len(settings)], scratch) for i in range(n)]
    return FusedSampling(
        samplers=[None if i in written else one for i, one in enumerate(samplers)],
        indices=[7 * i for i in range(n)],
        token_ids=ids,
    )


def chosen_from(logits, wanted):
    return [
        -1 if sampler is None else sampler.choose(row, NOTHING, 0, index, wanted.token_ids)
        for row, sampler, index in zip(logits, wanted.samplers, wanted.indices, strict=True)
    ]


@searching(60)
@given(
    st.data(),
    st.sampled_from([33, 600, 1500]),
    st.integers(1, N_ROWS),
    st.integers(1, 3),
    st.booleans(),
)
def test_tokens_are_those_of_written_logits(data, n_logits, n, threads, repack):
    """Any rows of a batch, and any of their logits wanted; odd logits; all other outputs."""
    numbers, rows = st.integers(0, n_logits - 1), st.integers(0, n - 1)
    alike = data.draw(st.lists(numbers, max_size=40))
    odd = data.draw(st.dictionaries(numbers, st.sampled_from(ODD), max_size=9))
    outputs = sorted(data.draw(st.one_of(st.sets(rows, max_size=10), st.just(range(n)))))
    written = sorted(data.draw(st.sets(st.integers(0, max(len(outputs) - 1, 0)), max_size=9)))

    def edit(matrix):
        matrix[alike] = matrix[alike[:1]]
        for row, value in odd.items():
            matrix[row] = value

    one = Runner(CpuBackend(), *head(n_logits, None, edit, repack), threads=threads, n_batch=N_ROWS)
    ids = (np.arange(n_logits) % N_VOCAB).astype(np.int32)
    wanted, rows = fused_sampling(len(outputs), n_logits, ids, written=written), rows_of(n, outputs)
    plain = run(one, rows)
    made = run(one, msgspec.structs.replace(rows, fused_sampling=wanted))
    assert np.array_equal(made["hidden"], plain["hidden"])
    assert made[CHOSEN].tolist() == chosen_from(plain["logits"], wanted)
    kept = plain["logits"][written if outputs else []]
    assert np.array_equal(made["logits"], kept, equal_nan=True)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_of_equal_logits_the_lowest_row_is_chosen(threads):
    """The first of them in another thread's columns than the last, and in another piece."""
    n_logits, alike = 3000, [70, 700, 1600, 2950]

    def edit(matrix):
        matrix[:] = 0
        matrix[alike] = 1

    program, weights = head(n_logits, None, edit)
    one = Runner(CpuBackend(), program, weights, threads=threads, n_batch=16)
    rows, wanted = rows_of(8, list(range(8))), fused_sampling(8, n_logits, settings=RACES[:1])
    ids = (np.arange(n_logits) % N_VOCAB).astype(np.int32)
    wanted = msgspec.structs.replace(wanted, token_ids=ids)
    logits = run(one, rows)["logits"]
    assert (logits[:, alike] == logits[:, alike[:1]]).all()
    assert {int(row.argmax()) for row in logits} == {0, alike[0]}  # the largest are these, or zeros
    made = run(one, msgspec.structs.replace(rows, fused_sampling=wanted))[CHOSEN]
    assert made.tolist() == [int(ids[row.argmax()]) for row in logits]


def softened(g, hidden):
    """Logits that another output is made of."""
    logits = g.matmul(g.output_rows(hidden), "head.weight")
    return Outputs(logits, soft=g.scale(logits, 0.5))


def scaled(g, hidden):
    return Outputs(g.scale(g.matmul(g.output_rows(hidden), "head.weight"), 3.0))


@pytest.mark.parametrize("build", [softened, scaled])
def test_logits_that_are_more_than_a_product_are_written(build):
    tensors = random_tensors(2, embd=(N_VOCAB, WIDTH), head=(N_VOCAB, WIDTH))
    g = GraphBuilder("tiny", tensors)
    program = g.finish(build(g, g.embed(g.inputs.tokens, "embd.weight")))
    one = CpuBackend().plan(program, Weights(tensors), n_batch=16, n_ctx=16, threads=2, stores=())
    rows = msgspec.structs.replace(
        rows_of(3, [0, 2]), slots={}, fused_sampling=fused_sampling(2, N_VOCAB)
    )
    made = one.run(rows, None)
    assert CHOSEN not in made
    assert made["logits"].shape == (2, N_VOCAB)
    assert np.isfinite(made["logits"]).all()
    if "soft" in made:
        assert np.array_equal(made["soft"], made["logits"] * np.float32(0.5))


def test_choices_that_do_not_fit_are_errors():
    one = Runner(CpuBackend(), *head(factor=None), n_batch=16)
    good, rows = fused_sampling(2, N_LOGITS), rows_of(3, [0, 2])
    ids = np.full(N_LOGITS, N_VOCAB, np.int32)
    with_cuts = fused_sampling(2, N_LOGITS, settings=[RACES[0], Sampling(seed=1, top_k=3)])
    for wrong, error in (
        (fused_sampling(1, N_LOGITS), BatchError),
        (msgspec.structs.replace(good, indices=[1]), BatchError),
        (msgspec.structs.replace(good, indices=[1, 2**32]), SamplingError),
        (msgspec.structs.replace(good, token_ids=ids), SamplingError),
        (msgspec.structs.replace(good, token_ids=ids[1:]), SamplingError),
        (fused_sampling(2, N_LOGITS - 1), SamplingError),
        (with_cuts, SamplingError),
    ):
        with pytest.raises(error):
            run(one, msgspec.structs.replace(rows, fused_sampling=wrong))
    made = run(one, msgspec.structs.replace(rows, fused_sampling=good))
    assert made[CHOSEN].tolist() == chosen_from(run(one, rows)["logits"], good)


@pytest.mark.parametrize(
    ("setting", "is_gumbel_max"),
    [
        ({}, True),
        ({"temperature": 0, "top_k": 5, "min_p": 0.1}, True),
        *(
            (one, False)
            for one in (
                {"top_k": 5},
                {"top_p": 0.9},
                {"min_p": 0.1},
                {"logit_bias": {3: 2.0}},
                {"repetition_penalty": 1.1},
                {"temperature": 0, "presence_penalty": 0.5},
                {"temperature": 0, "frequency_penalty": 0.5},
            )
        ),
    ],
)
def test_settings_that_are_one_argmax(setting, is_gumbel_max):
    assert (
        Sampler(Sampling(seed=1, **setting), Scratch(N_LOGITS, N_VOCAB)).is_gumbel_max
        == is_gumbel_max
    )
