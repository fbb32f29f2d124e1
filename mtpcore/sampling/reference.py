"""The sampler's definition in NumPy: slow, and as close to its description as possible.

Tests compare the compiled sampler with this one, token for token. The order of the chain is
llama.cpp's: bias, penalties, DRY, mask (``adjust``), then the cuts (``CUTS``), then temperature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import NO_TOKEN
from mtpcore.sampling.settings import Sampling

__all__ = ["adjust", "choose", "cut", "gumbel", "masses", "philox", "rank", "warm"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
Rows = NDArray[np.intp]

MASS_ONE = 2.0**40  # units in the largest probability
LARGEST_PENALTY = 1e30
LEAST_TEMPERATURE = 1e-30
XTC_COIN = 2**32 - 1  # drawn like a token's noise; no token has this id


def philox(counter: NDArray[np.uint32], key: int) -> NDArray[np.uint32]:
    """Return four random words for four counter words: Philox4x32-10 (Salmon et al., SC 2011).

    Parameters
    ----------
    counter : uint32[..., 4]
        Counters.
    key : int
        64-bit key, shared by all.

    Returns
    -------
    uint32[..., 4]
    """
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b, c, d = np.moveaxis(counter.astype(np.uint64), -1, 0)
    for step in range(10):
        key0 = np.uint64(((key & 0xFFFFFFFF) + step * 0x9E3779B9) & 0xFFFFFFFF)
        key1 = np.uint64(((key >> 32) + step * 0xBB67AE85) & 0xFFFFFFFF)
        product0, product1 = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b = (product1 >> shift) ^ b ^ key0, product1 & low
        c, d = (product0 >> shift) ^ d ^ key1, product0 & low
    return np.stack([a, b, c, d], axis=-1).astype(np.uint32)


def uniform(sampling: Sampling, index: int, token_ids: NDArray[np.int64]) -> F64:
    """Return a random number in (0, 1) of each token id at one index of a sequence."""
    stream = sampling.stream
    counter = np.empty((len(token_ids), 4), np.uint32)
    counter[:, 0] = token_ids
    counter[:, 1:] = index, stream & 0xFFFFFFFF, stream >> 32
    words = philox(counter, int(sampling.seed or 0)).astype(np.uint64)
    bits = words[:, 1] << np.uint64(32) | words[:, 0]
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def gumbel(sampling: Sampling, index: int, token_ids: I32) -> F64:
    """Return the Gumbel noise of each token id at one index of a sequence."""
    return -np.log(-np.log(uniform(sampling, index, token_ids.astype(np.int64))))


def latest(tokens: I32, n: int) -> I32:
    """Return the last n tokens; all where n is -1."""
    return tokens if n < 0 else tokens[max(len(tokens) - n, 0) :]


def repetitions(
    sampling: Sampling, history: I32, breakers: Sequence[Sequence[int]]
) -> dict[int, int]:
    """Return the tokens that would go on with a repetition, and how long it is without them.

    DRY, "don't repeat yourself" (P. E. Weidmann, text-generation-webui, pull request 5677, 2024).
    Token w[n - k] follows as many tokens that are also the last ones of all as there are j with
    w[n - k - j] = w[n - j] without a gap; those before a breaker do not count.
    """
    words = latest(history, sampling.dry_penalty_last_n).tolist()
    n, alone = len(words), {ids[0] for ids in breakers if len(ids) == 1}
    found: dict[int, int] = {}
    most = n_after_breaker(words, breakers)
    if n <= sampling.dry_allowed_length:
        return found
    for k in range(1, n):
        equal = 0
        while equal < min(most, n - k) and words[n - k - equal - 1] == words[n - equal - 1]:
            equal += 1
        token = words[n - k]
        if equal >= sampling.dry_allowed_length and token not in alone and token >= 0:
            found[token] = max(found.get(token, 0), equal)
    return found


def n_after_breaker(words: Sequence[int], breakers: Sequence[Sequence[int]]) -> int:
    """Return how many tokens come after the latest breaker; ids below 0 are breakers."""
    for begin in range(len(words))[::-1]:
        lengths = [len(ids) for ids in breakers if [*ids] == words[begin : begin + len(ids)]]
        if words[begin] < 0 or lengths:
            return len(words) - begin - max(lengths, default=1)
    return len(words)


def dry_penalty(sampling: Sampling, excess: int) -> float:
    """Return what a repetition costs that is this much longer than is allowed."""
    power = 1.0
    while excess > 0 and sampling.dry_base > 1 and power < LARGEST_PENALTY:
        power, excess = power * sampling.dry_base, excess - 1
    return min(sampling.dry_multiplier * power, LARGEST_PENALTY)


def adjust(
    sampling: Sampling,
    logits: F32,
    history: I32,
    n_prompt: int,
    token_ids: I32,
    allowed: NDArray[np.bool_] | None = None,
    breakers: Sequence[Sequence[int]] = (),
) -> F32:
    """Return the logits after bias, penalties, DRY and mask; -inf for NaN.

    Parameters
    ----------
    sampling : Sampling
        Settings.
    logits : float32[n_vocab]
        One row.
    history : int32[n_history]
        Tokens before the chosen one, the prompt first.
    n_prompt : int
        Length of the prompt.
    token_ids : int32[n_vocab]
        Token id of each row.
    allowed : bool[n_ids], optional
        The mask, by token id.
    breakers : sequence of sequences of int
        What breaks repetitions, as ``spell_breakers`` gives it.
    """
    out, biases = logits.copy(), sampling.logit_bias or {}
    recent = latest(history, sampling.penalty_last_n)
    text = recent[max(n_prompt - (len(history) - len(recent)), 0) :]
    for row in np.flatnonzero(np.isin(token_ids, [*biases, *recent])):
        token_id = int(token_ids[row])
        with np.errstate(invalid="ignore"):  # inf - inf is NaN, which is not chosen
            out[row] += np.float32(biases.get(token_id, 0.0))
        if token_id in recent:
            logit, n_text = float(out[row]), int((text == token_id).sum())
            penalty = sampling.repetition_penalty
            logit = logit / penalty if logit > 0 else logit * penalty
            if n_text > 0:
                logit -= n_text * sampling.frequency_penalty + sampling.presence_penalty
            out[row] = logit
    if sampling.dry_multiplier > 0:
        lengths = repetitions(sampling, history, breakers)
        for row in np.flatnonzero(np.isin(token_ids, [*lengths])):
            excess = lengths[int(token_ids[row])] - sampling.dry_allowed_length
            out[row] = float(out[row]) - dry_penalty(sampling, excess)
    out[np.isnan(out)] = -np.inf
    if allowed is not None:
        out[~allowed[token_ids]] = -np.inf
    return out


def gaps(logits: F32) -> F64:
    """Return how far each logit lies below the largest: 0 or less."""
    wide, top = logits.astype(np.float64), float(logits.max())
    gap = np.full(len(wide), -np.inf) if np.isinf(top) else wide - top
    gap[wide == top] = 0.0
    return gap


def masses(logits: F32) -> NDArray[np.int64]:
    """Return probabilities at temperature 1 in whole units of 2**-40 of the largest.

    Whole numbers add up to the same sum in every order.
    """
    return np.rint(np.exp(gaps(logits)) * MASS_ONE).astype(np.int64)


def mean_gap(logits: F32, rows: Rows) -> float:
    """Return how far rows lie below the largest logit of all, on average by probability."""
    rows = rows[masses(logits)[rows] > 0]
    mass = masses(logits)[rows]
    depth = np.floor(mass * -gaps(logits)[rows] + 0.5).astype(np.int64)
    return float(depth.sum()) / float(mass.sum())


def top_n_sigma(sampling: Sampling, logits: F32, rows: Rows, index: int) -> Rows:
    """Keep logits at most n standard deviations below the largest (Tang and others 2024).

    "Top-n-sigma: not all logits are you need"; the deviation is that of all logits above -inf.
    """
    gap = gaps(logits)
    finite = gap[gap > -np.inf]
    mean = np.cumsum(finite)[-1] / len(finite)  # in the order of rows
    deviation = math.sqrt(np.cumsum((finite - mean) ** 2)[-1] / len(finite))
    return rows[gap[rows] >= -(sampling.top_n_sigma * deviation)]


def top_k(sampling: Sampling, logits: F32, rows: Rows, index: int) -> Rows:
    """Keep the k likeliest (Fan, Lewis, Dauphin 2018)."""
    return rows[: sampling.top_k]


def typical(sampling: Sampling, logits: F32, rows: Rows, index: int) -> Rows:
    """Keep those whose -log p is nearest to its mean, until p sums up to typical_p.

    Meister, Pimentel, Wiher and Cotterell, "Locally typical sampling", 2023. Both -log p and its
    mean, the entropy, are the gap and its mean, but for the same constant.
    """
    mass = masses(logits)
    distance = np.abs(-gaps(logits) - mean_gap(logits, np.arange(len(logits))))
    by_row = np.sort(rows)
    nearest = by_row[np.argsort(distance[by_row].astype(np.float32), kind="stable")]
    before = np.cumsum(mass[nearest]) - mass[nearest]
    kept = nearest[before < sampling.typical_p * float(mass.sum())]
    return rows[np.isin(rows, kept)]


def top_p(sampling: Sampling, logits: F32, rows: Rows, index: int) -> Rows:
    """Keep the likeliest until p sums up to top_p (Holtzman and others 2020)."""
    mass = masses(logits)
    before = np.cumsum(mass[rows]) - mass[rows]
    return rows[before < sampling.top_p * float(mass.sum())]


def min_p(sampling: Sampling, logits: F32, rows: Rows, index: int) -> Rows:
    """Keep those with min_p times the probability of the likeliest (Nguyen and others 2024)."""
    mass = masses(logits)
    return rows[mass[rows] >= sampling.min_p * float(mass[rows[0]])]


def xtc(sampling: Sampling, logits: F32, rows: Rows, index: int) -> Rows:
    """Leave out all tokens above a threshold but the least likely, if a coin says so.

    XTC, "exclude top choices" (P. E. Weidmann, text-generation-webui, pull request 6335, 2024).
    """
    mass = masses(logits)
    n_above = int((mass[rows] >= sampling.xtc_threshold * float(mass.sum())).sum())
    coin = uniform(sampling, index, np.array([XTC_COIN], np.int64))[0]
    return rows[max(n_above - 1, 0) :] if coin < sampling.xtc_probability else rows


Keep = Callable[[Sampling, F32, Rows, int], Rows]
CUTS: tuple[tuple[str, float, Keep], ...] = (
    ("top_n_sigma", 0.0, top_n_sigma),
    ("top_k", 0, top_k),
    ("typical_p", 1.0, typical),
    ("top_p", 1.0, top_p),
    ("min_p", 0.0, min_p),
    ("xtc_probability", 0.0, xtc),
)
"""In order: the setting, the value that leaves nothing out, and which rows it keeps.

``keep(sampling, logits, rows, index)`` is given rows in the order of probability.
"""


def cut(sampling: Sampling, logits: F32, index: int = 0) -> Rows:
    """Return the rows that pass all cuts, the likeliest first; ``index`` is the chosen token's."""
    rows = np.argsort(-logits.astype(np.float64), kind="stable")
    rows = rows[logits[rows] > -np.inf]
    for setting, neutral, keep in CUTS:
        if getattr(sampling, setting) != neutral:
            rows = keep(sampling, logits, rows, index)
    return rows


def warm(sampling: Sampling, logits: F32, rows: Rows) -> float:
    """Return the temperature of a choice among rows.

    Dynamic temperature (kalomaze, koboldcpp, 2023; as in llama.cpp): the more evenly probabilities
    are spread, the higher.
    """
    spread = sampling.dynatemp_range
    if spread == 0:
        return sampling.temperature
    low, high = max(sampling.temperature - spread, 0.0), sampling.temperature + spread
    mass, evenness = float(masses(logits)[rows].sum()), 0.0
    if len(rows) > 1 and mass > 0:
        entropy = np.log(mass / MASS_ONE) + mean_gap(logits, rows)
        evenness = min(max(float(entropy / np.log(len(rows))), 0.0), 1.0)
    raised = math.pow(evenness, sampling.dynatemp_exponent)
    return max(low + (high - low) * raised, LEAST_TEMPERATURE)


def choose(
    sampling: Sampling,
    logits: F32,
    history: I32,
    n_prompt: int,
    index: int,
    token_ids: I32 | None = None,
    allowed: NDArray[np.bool_] | None = None,
    breakers: Sequence[Sequence[int]] = (),
) -> int:
    """Return the chosen token id, NO_TOKEN where none is left to choose.

    Parameters as in `adjust`, and the chosen token's index.
    """
    ids = np.arange(len(logits), dtype=np.int32) if token_ids is None else token_ids
    adjusted = adjust(sampling, logits, history, n_prompt, ids, allowed, breakers)
    if adjusted.max() == -np.inf:
        return NO_TOKEN
    if sampling.temperature == 0:
        return int(ids[adjusted.argmax()])
    rows = np.sort(cut(sampling, adjusted, index))
    wide = adjusted[rows].astype(np.float64)
    scores = wide * (1.0 / warm(sampling, adjusted, rows)) + gumbel(sampling, index, ids[rows])
    return int(ids[rows[scores.argmax()]])


def rank(
    sampling: Sampling,
    logits: F32,
    history: I32,
    n_prompt: int,
    index: int,
    n: int,
    token_ids: I32 | None = None,
    breakers: Sequence[Sequence[int]] = (),
) -> tuple[I32, F32, F64]:
    """Return the n most probable tokens, their probabilities and shares; parameters as in `choose`.

    The first is the one chosen, each further one would be chosen without those before it. A share
    is p e^(temperature * noise) over the sum of that for all ranked tokens and of p for the others,
    p being the probability at temperature 1 after bias and penalties.
    """
    ids = np.arange(len(logits), dtype=np.int32) if token_ids is None else token_ids
    adjusted = adjust(sampling, logits, history, n_prompt, ids, breakers=breakers)
    if adjusted.max() == -np.inf:
        return ids[:0], np.zeros(0, np.float32), np.zeros(0)
    wide, temperature = adjusted.astype(np.float64), sampling.temperature
    if temperature == 0:
        rows, scores, noise = np.flatnonzero(wide > -np.inf), wide, np.zeros(len(wide))
    else:
        rows, noise = np.sort(cut(sampling, adjusted, index)), gumbel(sampling, index, ids)
        temperature = warm(sampling, adjusted, rows)
        scores = wide * (1.0 / temperature) + noise
    rows = rows[np.argsort(-scores[rows], kind="stable")][:n]
    mass = masses(adjusted)
    exponents = gaps(adjusted)[rows] + temperature * noise[rows]
    largest = max(0.0, exponents.max())
    others = float(mass.sum() - mass[rows].sum()) / MASS_ONE * np.exp(-largest)
    weights = np.exp(exponents - largest)
    shares = np.minimum.accumulate(weights / (others + weights.sum()))
    return ids[rows], (mass[rows] / float(mass.sum())).astype(np.float32), shares
