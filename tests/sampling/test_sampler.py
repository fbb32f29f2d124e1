"""The compiled sampler against its definition, and the rules that the definition states."""

import math

import numpy as np
import pytest
from harness.search import searching
from harness.situations import host_situations, situations
from hypothesis import given
from hypothesis import strategies as st

from mtpcore._ext import _cpu, _sampling
from mtpcore._ext._sampling import NO_TOKEN
from mtpcore.errors import BackendError, NoTokenError, SamplingError
from mtpcore.sampling import Sampler, Sampling, Scratch, reference

NO_HISTORY = np.zeros(0, np.int32)


def choose(sampling, logits, history=(), n_prompt=0, index=0, **kwargs):
    logits = np.asarray(logits, np.float32)
    token_ids = kwargs.get("token_ids")
    n_ids = len(logits) if token_ids is None else int(max(token_ids)) + 1
    sampler = Sampler(sampling, Scratch(len(logits), max(n_ids, len(logits))))
    return sampler.choose(logits, np.array(history, np.int32), n_prompt, index, **kwargs)


def words(allowed):
    padded = np.zeros(-(-len(allowed) // 32) * 32, np.uint8)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view(np.uint32)


@searching(600)
@given(st.tuples(situations(), st.just(())) | host_situations(), st.integers(0, 2**32 - 1))
def test_equals_the_definition(both, index):
    (sampling, logits, history, n_prompt, n_ids, token_ids, allowed), breakers = both
    sampler = Sampler(sampling, Scratch(len(logits), n_ids), breakers)
    mask = None if allowed is None else words(allowed)
    wanted = reference.choose(
        sampling, logits, history, n_prompt, index, token_ids, allowed, breakers
    )
    got, p = sampler.choose_with_probability(logits, history, n_prompt, index, token_ids, mask)
    assert got == wanted
    if wanted == NO_TOKEN:
        with pytest.raises(NoTokenError):
            sampler.choose(logits, history, n_prompt, index, token_ids, mask)
    else:
        assert sampler.choose(logits, history, n_prompt, index, token_ids, mask) == wanted
    ids = np.arange(len(logits), dtype=np.int32) if token_ids is None else token_ids
    adjusted = reference.adjust(sampling, logits, history, n_prompt, ids, allowed, breakers)
    if adjusted.max() == -np.inf:
        assert p == 0
    else:
        mass = reference.masses(adjusted)
        assert p == pytest.approx(mass[ids == got][0] / mass.sum(), rel=1e-6, abs=1e-11)


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_equals_the_definition_on_a_large_vocabulary(scale):
    rng = np.random.default_rng(5)
    n_vocab = 151_936
    scratch = Scratch(n_vocab)
    logits = (rng.normal(size=n_vocab) * scale).astype(np.float32)
    cases = [
        {},
        {"temperature": 0.6},
        {"top_k": 40},
        {"top_k": 5000},
        {"top_p": 0.9},
        {"min_p": 0.05},
        {"top_k": 100, "top_p": 0.3, "min_p": 0.5, "temperature": 2.0},
    ]
    for index, case in enumerate(cases):
        sampling = Sampling(seed=3, **case)
        got = Sampler(sampling, scratch).choose(logits, NO_HISTORY, 0, index)
        assert got == reference.choose(sampling, logits, NO_HISTORY, 0, index), case


def test_every_instruction_set_chooses_the_same():
    """Tokens and probabilities, on rows that end inside a chunk."""
    rng = np.random.default_rng(6)
    cases = [{}, {"temperature": 1.5}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.01}]
    rows = [(rng.normal(size=n) * 3).astype(np.float32) for n in (1, 63, 64, 65, 1000, 32_001)]
    rows.append(np.where(rng.random(777) < 0.1, np.nan, np.float32(1)).astype(np.float32))
    rows.append(np.array([1.0, np.inf, np.nan, np.inf, -np.inf], np.float32))
    results = {}
    before = _cpu.use_isa("base")
    try:
        for isa in _cpu.available_isas():
            _cpu.use_isa(isa)
            results[isa] = [
                Sampler(
                    Sampling(seed=2**63 + 5, stream=2**40 + 1, **case), Scratch(len(row))
                ).choose_with_probability(row, NO_HISTORY, 0, index)
                for row in rows
                for case in cases
                for index in (0, 1, 2**32 - 1)
            ]
    finally:
        _cpu.use_isa(before)
    assert all(result == results["base"] for result in results.values())
    with pytest.raises(BackendError):
        _cpu.use_isa("none")


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_noise_equals_the_definition(seed, stream, index):
    ids = np.array([0, 1, 77, 151_935], np.int32)
    wanted = reference.gumbel(Sampling(seed=seed, stream=stream), index, ids)
    got = [_sampling.gumbel(seed, stream, index, int(token_id)) for token_id in ids]
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


def test_noise_is_accurate_where_it_is_large():
    """Of a million tokens the largest noise is near 14, of u near 1 - 1e-6."""
    ids = np.arange(2**20, dtype=np.int32)
    wanted = reference.gumbel(Sampling(seed=1), 5, ids)
    for token_id in np.argsort(wanted)[-4:].tolist():
        assert abs(_sampling.gumbel(1, 0, 5, token_id) - wanted[token_id]) < 1e-13


def test_t16_penalties_count_over_the_right_tokens():
    """Repetition reads prompt and text; frequency and presence the text; each token once."""
    logits = [2.0, 1.9, -1.0, -1.1]
    greedy = {"temperature": 0.0, "seed": 0}
    repetition = Sampling(repetition_penalty=1.2, **greedy)
    assert choose(repetition, logits, [0], n_prompt=1) == 1
    assert choose(repetition, logits, [0], n_prompt=0) == 1
    assert choose(repetition, logits, [0, 1, 1, 1], n_prompt=2) == 0  # 2 / 1.2 > 1.9 / 1.2
    assert choose(repetition, [-9.0, -9.0, -1.0, -1.1], [2], n_prompt=1) == 3
    presence = Sampling(presence_penalty=0.5, **greedy)
    assert choose(presence, logits, [0, 0], n_prompt=2) == 0
    assert choose(presence, logits, [1, 0], n_prompt=1) == 1
    assert choose(presence, [2.0, 1.4], [0, 0, 0], n_prompt=0) == 0  # once, however often
    frequency = Sampling(frequency_penalty=0.04, **greedy)
    assert choose(frequency, logits, [0, 0, 0], n_prompt=1) == 0  # 2 - 0.08 > 1.9
    assert choose(frequency, logits, [0, 0, 0, 0], n_prompt=1) == 1


def test_t16_rows_of_a_draft_see_the_drafts_before_them():
    """Row i is chosen as plain decoding would after history + drafts[:i].

    Every draft is right, so that a row which saw its own draft, or missed the one before it, would
    be penalised away from it.
    """
    rng = np.random.default_rng(8)
    logits = np.repeat(rng.normal(size=(1, 50)), 6, axis=0).astype(np.float32)
    whole = rng.integers(0, 50, 12).astype(np.int32)
    sampling = Sampling(temperature=0.0, presence_penalty=5.0, seed=1)
    sampler = Sampler(sampling, Scratch(50))
    for i in range(6):
        chosen = reference.choose(sampling, logits[i], whole, 7, 12 + i)
        whole = np.append(whole, np.int32(chosen))
    assert len(set(whole[12:].tolist())) == 6
    rows = [sampler.choose(logits[i], whole[: 12 + i], 7, 12 + i) for i in range(6)]
    assert rows == whole[12:].tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_t17_a_choice_depends_on_no_earlier_choice(temperature):
    """Chosen alone, in any order, or beside rejected rows: the same tokens."""
    rng = np.random.default_rng(9)
    logits = rng.normal(size=(30, 200)).astype(np.float32)
    sampler = Sampler(Sampling(temperature=temperature, seed=4), Scratch(200))
    plain = [sampler.choose(logits[i], NO_HISTORY, 0, i) for i in range(30)]
    for k in range(1, 9):
        tokens = []
        while len(tokens) < 30:
            n = min(k, 30 - len(tokens))
            n_accepted = int(rng.integers(1, n + 1))
            begin = len(tokens)
            rows = [
                sampler.choose(logits[i], np.zeros(i, np.int32), 0, i)
                for i in range(begin, begin + n)
            ]
            tokens += rows[:n_accepted]
        assert tokens == plain


@pytest.mark.parametrize("where", [(3, 5), (0, 64), (63, 64), (70, 450), (498, 499)])
def test_t19_ties_go_to_the_lowest_id(where):
    logits = np.zeros(500, np.float32)
    logits[list(where)] = 30.0
    assert choose(Sampling(temperature=0.0, seed=0), logits) == where[0]
    for cut in ({"top_k": 1}, {"top_p": 0.4}):
        for index in range(20):
            assert choose(Sampling(seed=1, **cut), logits, index=index) == where[0]
    sampling = Sampling(seed=1, temperature=0.1, top_k=2)
    assert {choose(sampling, logits, index=i) for i in range(20)} == set(where)


def test_top_p_ends_where_the_sum_reaches_it():
    sampling = Sampling(seed=2, top_p=0.5)
    assert {choose(sampling, [0.0] * 4, index=i) for i in range(100)} == {0, 1}
    assert {choose(sampling, [0.0] * 2, index=i) for i in range(100)} == {0}


def test_cuts_are_not_normalised_again():
    """p = 0.4, 0.3, 0.2, 0.1: top_k = 2 leaves 0.7; normalised, 0.4 of it would be 0.57."""
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1])).astype(np.float32)

    def support(**kwargs):
        return {choose(Sampling(seed=2, **kwargs), logits, index=i) for i in range(200)}

    assert support(top_p=0.5) == {0, 1}
    assert support(top_k=2, top_p=0.5) == {0, 1}
    assert support(top_k=2, top_p=0.95) == {0, 1}
    assert support(min_p=0.45) == {0, 1, 2}
    # The temperature comes last: it does not move the cuts.
    assert support(top_p=0.5, temperature=5.0) == {0, 1}
    assert support(min_p=0.45, temperature=5.0) == {0, 1, 2}


def test_what_is_not_a_number_is_never_chosen():
    nan, inf = math.nan, math.inf
    for temperature in (0.0, 1.0):
        for cut in ({}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}):
            sampling = Sampling(temperature=temperature, seed=5, **cut)
            assert choose(sampling, [nan, nan, 1.0, -inf]) == 2
            assert choose(sampling, [nan, 1.0, inf, inf]) == 2
            for logits, mask in (
                ([nan, nan, -inf], None),
                ([nan, nan, nan], words([0, 1, 1])),
                ([1.0, 2.0, 3.0], words([0, 0, 0])),
                ([nan, 2.0, 3.0], words([1, 0, 0])),
            ):
                with pytest.raises(NoTokenError, match="no token is left"):
                    choose(sampling, logits, mask=mask)
            assert choose(sampling, [1.0, 2.0, 3.0], mask=words([0, 1, 0])) == 1


def test_a_forbidden_token_is_never_chosen():
    sampling = Sampling(seed=1, logit_bias={1: -math.inf})
    assert {choose(sampling, [0.0, 50.0, 0.0], index=i) for i in range(40)} == {0, 2}


def test_a_draft_vocabulary_speaks_of_the_targets_ids():
    """Rows of a draft vocabulary choose what the same rows of the whole vocabulary would."""
    rng = np.random.default_rng(11)
    token_ids = np.sort(rng.permutation(1000)[:100]).astype(np.int32)
    whole = np.full(1000, -np.inf, np.float32)
    whole[token_ids] = rng.normal(size=100)
    history = rng.integers(0, 1000, 200).astype(np.int32)
    sampling = Sampling(
        seed=6,
        repetition_penalty=1.4,
        frequency_penalty=0.2,
        logit_bias={int(token_ids[3]): 2.0, int(token_ids[0]) + 1: 9.0},
    )
    sampler = Sampler(sampling, Scratch(1000))
    for index in range(100):
        got = sampler.choose(whole[token_ids].copy(), history, 50, index, token_ids=token_ids)
        assert got == sampler.choose(whole, history, 50, index)


def test_another_map_in_between_changes_nothing():
    scratch = Scratch(4, 100)
    sampler = Sampler(Sampling(temperature=0.0, seed=0, logit_bias={7: 5.0}), scratch)
    first, second = np.array([7, 8, 9, 10], np.int32), np.array([1, 2, 3, 7], np.int32)
    logits = np.array([0.0, 1.0, 2.0, 3.0], np.float32)
    for token_ids, wanted in ((first, 7), (second, 7), (first, 7)):
        assert sampler.choose(logits, NO_HISTORY, 0, 0, token_ids=token_ids) == wanted
    third = np.array([1, 2, 3, 4], np.int32)
    assert sampler.choose(logits, NO_HISTORY, 0, 0, token_ids=third) == 4


def test_what_does_not_fit_is_refused():
    sampler = Sampler(Sampling(seed=0), Scratch(10, 20))
    row = np.zeros(10, np.float32)
    bad = [
        (np.zeros(11, np.float32), NO_HISTORY, 0, 0),
        (np.zeros(0, np.float32), NO_HISTORY, 0, 0),
        (row, NO_HISTORY, 1, 0),
        (row, NO_HISTORY, -1, 0),
        (row, NO_HISTORY, 0, -1),
        (row, NO_HISTORY, 0, 2**32),
        (row, NO_HISTORY, 0, 0, np.zeros(9, np.int32)),
        (row, NO_HISTORY, 0, 0, np.full(10, 20, np.int32)),
        (row, NO_HISTORY, 0, 0, np.full(10, -1, np.int32)),
        (row, NO_HISTORY, 0, 0, None, np.zeros(0, np.uint32)),
    ]
    for arguments in bad:
        with pytest.raises(SamplingError):
            sampler.choose(*arguments)
    for incomplete in (Sampler, Scratch):
        with pytest.raises(TypeError):
            incomplete.__new__(incomplete)
    for sizes in ((0, 1), (1, 0), (2**31, 1)):
        with pytest.raises(SamplingError):
            Scratch(*sizes)
