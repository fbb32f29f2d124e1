"""The sampler's definition in NumPy: slow, and as close to its description as possible.

Tests compare the compiled sampler with this one, token for token.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import NO_TOKEN
from mtpcore.sampling.settings import Sampling

__all__ = ["adjust", "choose", "cut", "gumbel", "masses", "philox", "rank"]

MASS_ONE = 2.0**40  # units in the largest probability


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


def gumbel(sampling: Sampling, index: int, token_ids: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the Gumbel noise of each token id at one index of a sequence."""
    stream = sampling.stream
    counter = np.empty((len(token_ids), 4), np.uint32)
    counter[:, 0] = token_ids
    counter[:, 1:] = index, stream & 0xFFFFFFFF, stream >> 32
    words = philox(counter, int(sampling.seed or 0)).astype(np.uint64)
    bits = words[:, 1] << np.uint64(32) | words[:, 0]
    u = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return -np.log(-np.log(u))


def adjust(
    sampling: Sampling,
    logits: NDArray[np.float32],
    history: NDArray[np.int32],
    n_prompt: int,
    token_ids: NDArray[np.int32],
    allowed: NDArray[np.bool_] | None = None,
) -> NDArray[np.float32]:
    """Return the logits after bias, penalties and mask; -inf for NaN.

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
    """
    out, text, biases = logits.copy(), history[n_prompt:], sampling.logit_bias or {}
    for row in np.flatnonzero(np.isin(token_ids, [*biases, *history])):
        token_id = int(token_ids[row])
        with np.errstate(invalid="ignore"):  # inf - inf is NaN, which is not chosen
            out[row] += np.float32(biases.get(token_id, 0.0))
        if token_id in history:
            logit, n_text = float(out[row]), int((text == token_id).sum())
            penalty = sampling.repetition_penalty
            logit = logit / penalty if logit > 0 else logit * penalty
            if n_text > 0:
                logit -= n_text * sampling.frequency_penalty + sampling.presence_penalty
            out[row] = logit
    out[np.isnan(out)] = -np.inf
    if allowed is not None:
        out[~allowed[token_ids]] = -np.inf
    return out


def gaps(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return how far each logit lies below the largest: 0 or less."""
    wide, top = logits.astype(np.float64), float(logits.max())
    gap = np.full(len(wide), -np.inf) if np.isinf(top) else wide - top
    gap[wide == top] = 0.0
    return gap


def masses(logits: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return probabilities at temperature 1 in whole units of 2**-40 of the largest.

    Whole numbers add up to the same sum in every order.
    """
    return np.rint(np.exp(gaps(logits)) * MASS_ONE).astype(np.int64)


def cut(sampling: Sampling, logits: NDArray[np.float32]) -> NDArray[np.intp]:
    """Return the rows that pass top-k, top-p and min-p, the likeliest first."""
    mass = masses(logits)
    order = np.argsort(-logits.astype(np.float64), kind="stable")
    order = order[logits[order] > -np.inf]
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    if sampling.top_p < 1:
        before = np.cumsum(mass[order]) - mass[order]
        order = order[before < sampling.top_p * float(mass.sum())]
    if sampling.min_p > 0:
        order = order[mass[order] >= sampling.min_p * MASS_ONE]
    return order


def choose(
    sampling: Sampling,
    logits: NDArray[np.float32],
    history: NDArray[np.int32],
    n_prompt: int,
    index: int,
    token_ids: NDArray[np.int32] | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> int:
    """Return the chosen token id, NO_TOKEN where none is left to choose.

    Parameters as in `adjust`, and the chosen token's index.
    """
    ids = np.arange(len(logits), dtype=np.int32) if token_ids is None else token_ids
    adjusted = adjust(sampling, logits, history, n_prompt, ids, allowed)
    if adjusted.max() == -np.inf:
        return NO_TOKEN
    if sampling.temperature == 0:
        return int(ids[adjusted.argmax()])
    rows = np.sort(cut(sampling, adjusted))
    wide = adjusted[rows].astype(np.float64)
    scores = wide * (1.0 / sampling.temperature) + gumbel(sampling, index, ids[rows])
    return int(ids[rows[scores.argmax()]])


def rank(
    sampling: Sampling,
    logits: NDArray[np.float32],
    history: NDArray[np.int32],
    n_prompt: int,
    index: int,
    n: int,
    token_ids: NDArray[np.int32] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float64]]:
    """Return the n most probable tokens, their probabilities and shares; parameters as in `choose`.

    The first is the one chosen, each further one would be chosen without those before it. A share
    is p e^(temperature * noise) over the sum of that for all ranked tokens and of p for the others,
    p being the probability at temperature 1 after bias and penalties.
    """
    ids = np.arange(len(logits), dtype=np.int32) if token_ids is None else token_ids
    adjusted = adjust(sampling, logits, history, n_prompt, ids)
    if adjusted.max() == -np.inf:
        return ids[:0], np.zeros(0, np.float32), np.zeros(0)
    wide, temperature = adjusted.astype(np.float64), sampling.temperature
    if temperature == 0:
        rows, scores, noise = np.flatnonzero(wide > -np.inf), wide, np.zeros(len(wide))
    else:
        rows, noise = np.sort(cut(sampling, adjusted)), gumbel(sampling, index, ids)
        scores = wide * (1.0 / temperature) + noise
    rows = rows[np.argsort(-scores[rows], kind="stable")][:n]
    mass = masses(adjusted)
    exponents = gaps(adjusted)[rows] + temperature * noise[rows]
    largest = max(0.0, exponents.max())
    others = float(mass.sum() - mass[rows].sum()) / MASS_ONE * np.exp(-largest)
    weights = np.exp(exponents - largest)
    shares = np.minimum.accumulate(weights / (others + weights.sum()))
    return ids[rows], (mass[rows] / float(mass.sum())).astype(np.float32), shares
