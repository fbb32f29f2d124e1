"""The choice of tokens: what kernels choose is what the sampler chooses from the same logits."""

import sys

import numpy as np
from harness.cuda_steps import execute
from harness.search import searching
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from mtpcore.backends.cuda.launch.tokens import WINNER, choose, choosers_of, n_parts
from mtpcore.sampling import Sampler, Sampling, Scratch, reference

# One device serves all examples of a property.
shared = searching(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
NOTHING = np.zeros(0, np.int32)
WHOLE64, WHOLE32 = (st.integers(0, 2**n - 1) for n in (64, 32))
TEMPERATURES = [0.0, 1e-30, 0.01, 0.7, 1.0, 20.0, sys.float_info.max]
ODD = [np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-45]


def chosen_on(device, logits, samplings, indices, token_ids=None, rows=None):
    """Return what each setting chooses from its row; rows may be skipped, or be several's."""
    rows = range(len(logits)) if rows is None else rows
    scratch = Scratch(logits.shape[1])
    samplers = [Sampler(one, scratch) for one in samplings]
    choosers = choosers_of(zip(samplers, indices, rows, strict=True))
    n = len(choosers)
    ids = device.upload(np.full(n, -1, np.int32))
    launches = choose(
        device.upload(logits),
        device.upload(choosers),
        None if token_ids is None else device.upload(token_ids),
        device.empty((n, n_parts(logits.shape[1])), WINNER),
        ids,
        n,
    )
    execute(device, launches)
    return device.download(ids, n).tolist()


def chosen_by_sampler(logits, sampling, index, token_ids=None):
    n_ids = len(logits) if token_ids is None else int(token_ids.max()) + 1
    scratch = Scratch(len(logits), max(len(logits), n_ids))
    return Sampler(sampling, scratch).choose(logits, NOTHING, 0, index, token_ids)


@st.composite
def rows_of_logits(draw):
    """A few rows of many sizes: ties, and numbers that are none."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_rows = draw(st.integers(1, 3))
    n = draw(st.one_of(st.integers(1, 40), st.sampled_from([255, 2048, 2049, 5000])))
    logits = rng.normal(size=(n_rows, n)) * draw(st.sampled_from([0.01, 1.0, 4.0, 1e9]))
    if draw(st.booleans()):
        logits = np.round(logits)
    logits = logits.astype(np.float32)
    kind = draw(st.sampled_from(["all", "some", "few"]))
    for row in logits:
        if kind == "all":
            row[:] = rng.choice(np.array(draw(st.lists(st.sampled_from(ODD), min_size=1))), n)
        elif kind == "some":
            row[:] = np.where(rng.random(n) < 0.3, rng.choice(np.array(ODD), n), row)
        else:
            row[rng.integers(n)] = draw(st.sampled_from(ODD))
    token_ids = None
    if draw(st.booleans()):
        token_ids = rng.permutation(n + draw(st.integers(0, 50)))[:n].astype(np.int32)
    return logits, token_ids


@shared
@given(st.data(), rows_of_logits())
def test_tokens_are_the_sampler_s(device, data, drawn):
    """Any rows for any choosers, also several of one row."""
    logits, token_ids = drawn
    rows = data.draw(st.lists(st.integers(0, len(logits) - 1), min_size=1, max_size=4))
    samplings = [
        Sampling(
            temperature=data.draw(st.sampled_from(TEMPERATURES)),
            seed=data.draw(WHOLE64),
            stream=data.draw(WHOLE64),
        )
        for _ in rows
    ]
    indices = [data.draw(WHOLE32) for _ in rows]
    wanted = [
        chosen_by_sampler(logits[row], sampling, index, token_ids)
        for row, sampling, index in zip(rows, samplings, indices, strict=True)
    ]
    assert chosen_on(device, logits, samplings, indices, token_ids, rows) == wanted


def test_of_equal_scores_the_lowest_row_is_chosen(device):
    """Far apart: in another thread, warp and part; also where noise drowns in large logits."""
    for alike in ([3, 4], [31, 32], [40, 300], [2047, 2048], [70, 700, 4100]):
        for first in (1.0, 3e38, np.inf):
            logits = np.zeros((1, 5000), np.float32)
            logits[:, alike] = first
            greedy = chosen_on(device, logits, [Sampling.greedy()], [0])
            assert greedy == [alike[0]]
            if first > 1:
                assert chosen_on(device, logits, [Sampling(seed=1)], [0]) == greedy


def test_noise_decides_alone_among_equals(device):
    """As often as it is drawn, on a row of many parts: the definition's largest."""
    n, ids = 40_000, np.arange(40_000, dtype=np.int32)
    logits, indices = np.zeros((1, n), np.float32), list(range(6))
    sampling = Sampling(seed=2**63 + 5, stream=2**40 + 1)
    wanted = [int(reference.gumbel(sampling, index, ids).argmax()) for index in indices]
    assert chosen_on(device, logits, [sampling] * 6, indices, rows=[0] * 6) == wanted
    assert len(set(wanted)) == 6
