"""The choice of tokens: what kernels choose is what the sampler chooses from the same logits."""

import math
import sys

import msgspec
import numpy as np
from harness.cuda_steps import execute
from harness.search import searching
from harness.situations import situations
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from mtpcore._ext._sampling import exp, gumbel
from mtpcore.backends.cuda.launch.passes import DRAFT
from mtpcore.backends.cuda.launch.tokens import (
    ADJUSTED,
    N_DIGITS,
    TALLY,
    WINNER,
    Adjustments,
    Cuts,
    Drafted,
    adjust,
    adjusted_row,
    adjustments_of,
    choose,
    choosers_of,
    cut,
    cuts_of,
    find_tops,
    logits_by_token,
    n_parts,
)
from mtpcore.sampling import Sampler, Sampling, Scratch, reference

# One device serves all examples of a property.
shared = searching(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
NOTHING = np.zeros(0, np.int32)
WHOLE64, WHOLE32, WHOLE31 = (st.integers(0, 2**n - 1) for n in (64, 32, 31))
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
    sampler = Sampler(sampling, scratch)
    return sampler.choose_with_probability(logits, NOTHING, 0, index, token_ids)[0]


@shared
@given(st.lists(st.tuples(WHOLE64, WHOLE64, WHOLE32), min_size=1, max_size=40), WHOLE31)
def test_noise_has_the_sampler_s_bits(device, keys, token_id):
    """The score of a row's only token, whose logit is 0."""
    scratch, n = Scratch(1), len(keys)
    samplers = [Sampler(Sampling(seed=seed, stream=stream), scratch) for seed, stream, _ in keys]
    choosers = device.upload(choosers_of((one, keys[i][2], 0) for i, one in enumerate(samplers)))
    arrays = device.upload(np.zeros((1, 1), np.float32)), choosers
    names = device.upload(np.array([token_id], np.int32))
    winners, ids = device.empty((n, 1), WINNER), device.empty((n,), np.int32)
    execute(device, choose(*arrays, names, winners, ids, n))
    scores = device.download(winners, n)["score"][:, 0]
    assert scores.tolist() == [gumbel(*key, token_id) for key in keys]
    assert (device.download(ids, n) == token_id).all()


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


def test_a_token_may_win_that_does_not_promise_most(device):
    """By the bounds of noise: the kernel tries another one first."""
    n, sampling, indices = 700, Sampling(seed=2**63 + 5, stream=7), []
    ids, counters = np.arange(n, dtype=np.int32), np.zeros((n, 4), np.uint32)
    logits = np.random.default_rng(2).normal(size=(1, n)).astype(np.float32)
    wanted = []
    for index in range(1500):
        counters[:, 0], counters[:, 1:] = ids, (index, 7, 0)
        upper = reference.philox(counters, 2**63 + 5)[:, 1]
        y = (~upper >> np.uint32(8)).astype(np.float32)
        bounds = logits[0] - y.view(np.int32) * (math.log(2) / 2**23)
        best = int((logits[0] + reference.gumbel(sampling, index, ids)).argmax())
        if bounds.argmax() != best:
            indices.append(index)
            wanted.append(best)
    assert len(indices) > 5
    made = chosen_on(device, logits, [sampling] * len(indices), indices, rows=[0] * len(indices))
    assert made == wanted


def adjustments_for(device, samplers, history, n_prompt, n_logits, token_ids, first=0, n_drafts=0):
    """Return what adjusts rows from ``first`` on, each after the same text and drafts."""
    by_token = None if token_ids is None else logits_by_token(token_ids)
    lists = [adjustments_of(one, history, n_prompt, n_logits, by_token) for one in samplers]
    begins = np.cumsum([0, *map(len, lists)]).tolist()
    rows = [
        adjusted_row(one, first + i, (begins[i], len(lists[i])), (1, n_drafts))
        for i, one in enumerate(samplers)
    ]
    arrays = np.array(rows, ADJUSTED), np.concatenate(lists)
    return Adjustments(
        *map(device.upload, arrays), None if by_token is None else device.upload(by_token)
    )


def chosen_after_all(device, logits, samplings, history, n_prompt, index, token_ids=None):
    """Return what each setting chooses from a copy of the row, after bias, penalties and cuts."""
    n, n_logits = len(samplings), len(logits)
    scratch = Scratch(n_logits)
    samplers = [Sampler(one, scratch) for one in samplings]
    adjustments = adjustments_for(device, samplers, history, n_prompt, n_logits, token_ids)
    rows = device.upload(np.tile(logits, (n, 1)))
    choosers = device.upload(choosers_of((one, index, i) for i, one in enumerate(samplers)))
    tallies = device.upload(np.zeros((n, N_DIGITS), TALLY))
    cuts = Cuts(device.upload(cuts_of(samplers)), device.empty((n,), np.int32), tallies)
    winners = device.empty((n, n_parts(n_logits)), WINNER)
    ids, names = device.empty((n,), np.int32), None
    if token_ids is not None:
        names = device.upload(token_ids)
    launches = [
        *adjust(rows, adjustments, n),
        *find_tops(rows, choosers, winners, cuts.tops, n),
        *cut(rows, choosers, cuts, winners, n),
        *choose(rows, choosers, names, winners, ids, n, cuts),
    ]
    execute(device, launches)
    assert not device.download(tallies, n)["count"].any()
    return device.download(ids, n).tolist()


@shared
@given(situations(), situations(), WHOLE32)
def test_tokens_after_bias_penalties_and_cuts_are_the_sampler_s(device, one, other, index):
    """Of two settings, one of which may have no cuts; maybe none, where none is left."""
    sampling, logits, history, n_prompt, n_ids, token_ids, _ = one
    samplings, scratch = [sampling, other[0]], Scratch(len(logits), n_ids)
    wanted = [
        Sampler(each, scratch).choose_with_probability(logits, history, n_prompt, index, token_ids)[
            0
        ]
        for each in samplings
    ]
    made = chosen_after_all(device, logits, samplings, history, n_prompt, index, token_ids)
    assert made == wanted


def assert_adjusted(device, sampling, logits, history, n_prompt, token_ids=None, n_drafts=0):
    """In the second of two rows; the first stays. The text ends with drafts, among others."""
    sampler, n_logits = Sampler(sampling, Scratch(len(logits))), len(logits)
    rows, n = device.upload(np.tile(logits, (2, 1))), len(history) - n_drafts
    drafts, numbers = np.zeros(2 * n_drafts + 1, DRAFT), np.arange(2 * n_drafts + 1)[::-1]
    drafts["token"][numbers] = [0, *history[n:], *history[n:] + 1]
    drafted = Drafted(device.upload(drafts), device.upload(numbers.astype(np.int32)))
    adjustments = adjustments_for(
        *(device, [sampler], history[:n], n_prompt, n_logits, token_ids, 1, n_drafts)
    )
    execute(device, adjust(rows, adjustments, 1, drafted))
    first, made = device.download(rows, 2)
    assert first.tobytes() == logits.tobytes()
    ids = np.arange(n_logits, dtype=np.int32) if token_ids is None else token_ids
    wanted = reference.adjust(sampling, logits, history, n_prompt, ids)
    assert np.array_equal(np.where(np.isnan(made), np.float32(-np.inf), made), wanted)


@shared
@given(situations(), st.floats(0, 1))
def test_adjusted_logits_have_the_sampler_s_bits(device, situation, share):
    """A part of the text are drafts that the host does not know."""
    sampling, logits, history, n_prompt, _, token_ids, _ = situation
    n_drafts = int(share * (len(history) - n_prompt))
    assert_adjusted(device, sampling, logits, history, n_prompt, token_ids, n_drafts)


def test_a_logit_is_rounded_after_its_bias_and_after_its_penalties(device):
    """Where each of many tokens has all of them."""
    rng, n = np.random.default_rng(8), 300
    sampling = Sampling(
        logit_bias=dict(enumerate(rng.normal(size=n).tolist())),
        repetition_penalty=1.3,
        frequency_penalty=0.1,
        presence_penalty=0.7,
    )
    history = rng.permutation(np.repeat(np.arange(n), 2)).astype(np.int32)
    logits = rng.normal(size=n).astype(np.float32)
    for n_drafts in (0, 1, n // 2, n):
        assert_adjusted(device, sampling, logits, history, n, n_drafts=n_drafts)


@shared
@given(situations(), st.integers(0, 2**32))
def test_cuts_are_those_of_the_definition(device, situation, seed):
    """On rows of one part and of several, with ties: all that passes, and nothing else.

    The mass that is wanted has the bits of the sampler's.
    """
    sampling, logits, *_ = situation
    sampling = msgspec.structs.replace(sampling, min_p=0, temperature=1)
    rng = np.random.default_rng(seed)
    logits = rng.choice(logits, rng.choice([1, 100, 2048, 2500])).astype(np.float32)
    n_logits = len(logits)
    sampler = Sampler(sampling, Scratch(n_logits))
    arrays = [cuts_of([sampler]), np.zeros(1, np.int32), np.zeros((1, N_DIGITS), TALLY)]
    cuts = Cuts(*map(device.upload, arrays))
    choosers = device.upload(choosers_of([(sampler, 0, 0)]))
    winners = device.empty((1, n_parts(n_logits)), WINNER)
    rows = device.upload(logits[None])
    execute(device, find_tops(rows, choosers, winners, cuts.tops, 1))
    execute(device, cut(rows, choosers, cuts, winners, 1))
    found = device.download(cuts.cuts, 1)
    (last,), (wanted,) = found["last"].tolist(), found["wanted"].tolist()
    row_bits = (n_logits - 1).bit_length()
    least, row = last >> row_bits, 2**row_bits - 1 - last % 2**row_bits
    bits = (logits + np.float32(0)).view(np.uint32).astype(np.int64)
    rising = np.where(bits >> 31, 2**32 - 1 - bits, bits + 2**31)
    passes = (rising > least) | ((rising == least) & (np.arange(n_logits) <= row))
    passes &= logits > -np.inf
    usable = np.where(np.isnan(logits), np.float32(-np.inf), logits)
    if usable.max() > -np.inf:
        masses = np.rint(exp(np.maximum(reference.gaps(usable), -40)) * reference.MASS_ONE)
        assert wanted == (sampling.top_p * masses.sum() if sampling.top_p < 1 else np.inf)
        assert np.flatnonzero(passes).tolist() == sorted(reference.cut(sampling, usable))
