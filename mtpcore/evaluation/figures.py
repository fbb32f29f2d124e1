"""Figures of predictions: perplexity, and the divergence by which people choose quantisations.

They are those of llama.cpp's ``perplexity`` tool, which keeps the reference's probabilities in 16
bits; here both models' are computed in float64 from their logits.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

__all__ = ["PERCENTILES", "Divergence", "Estimate", "Figures", "Rows", "compare_rows"]

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
"""Of divergences, in percent."""


class Estimate(msgspec.Struct, frozen=True):
    """A mean over tokens and its standard error; 0 where there are too few of them to say."""

    value: float
    error: float


class Divergence(msgspec.Struct, frozen=True):
    """How far predictions are from those of a reference.

    Attributes
    ----------
    mean : Estimate
        Kullback-Leibler divergence of the reference's distribution from the model's, in nats: the
        mean over tokens.
    percentiles : dict of str to float
        By percent, as in ``"99.9"``.
    maximum : float
    same_choice : Estimate
        Share of places where both have the same most probable token.
    probability : float
        Root mean square of the changes of the right token's probability.
    log_perplexity_ratio : Estimate
        Of the model's perplexity to the reference's, its natural logarithm; its error takes into
        account that both read the same texts.
    reference_perplexity : Estimate
    """

    mean: Estimate
    percentiles: dict[str, float]
    maximum: float
    same_choice: Estimate
    probability: float
    log_perplexity_ratio: Estimate
    reference_perplexity: Estimate


class Figures(msgspec.Struct, frozen=True):
    """What predictions of some tokens come to.

    Attributes
    ----------
    n_tokens : int
        Tokens that were predicted.
    perplexity : Estimate
        Exponential of the mean negative log-likelihood.
    divergence : Divergence or None
        Where there is a reference.
    """

    n_tokens: int
    perplexity: Estimate
    divergence: Divergence | None = None


class Rows(msgspec.Struct, frozen=True):
    """Predictions of tokens in a row, one value for each.

    Attributes
    ----------
    losses : float64 [n]
        Negative log-likelihood of each token that came.
    reference_losses, divergences : float64 [n], optional
    same : bool [n], optional
        Whether both have the same most probable token; of equal ones the lowest id counts.
    """

    losses: np.ndarray
    reference_losses: np.ndarray | None = None
    divergences: np.ndarray | None = None
    same: np.ndarray | None = None

    @classmethod
    def joined(cls, rows: list[Rows]) -> Rows:
        """Return several as one."""

        def join(name: str) -> np.ndarray | None:
            given = [getattr(one, name) for one in rows]
            return None if any(one is None for one in given) else np.concatenate(given)

        losses = join("losses")
        assert losses is not None
        return cls(losses, join("reference_losses"), join("divergences"), join("same"))

    def figures(self) -> Figures:
        """Return what they come to."""
        perplexity = _perplexity(self.losses)
        if self.reference_losses is None or self.divergences is None or self.same is None:
            return Figures(len(self.losses), perplexity)
        ratio = _estimate(self.losses - self.reference_losses)
        changes = np.exp(-self.losses) - np.exp(-self.reference_losses)
        values = np.percentile(self.divergences, PERCENTILES)
        divergence = Divergence(
            mean=_estimate(self.divergences),
            percentiles={f"{p:g}": float(v) for p, v in zip(PERCENTILES, values, strict=True)},
            maximum=float(self.divergences.max()),
            same_choice=_estimate(self.same.astype(np.float64)),
            probability=float(np.sqrt(np.mean(changes**2))),
            log_perplexity_ratio=ratio,
            reference_perplexity=_perplexity(self.reference_losses),
        )
        return Figures(len(self.losses), perplexity, divergence)


def compare_rows(
    logits: np.ndarray, tokens: np.ndarray, reference: np.ndarray | None = None
) -> Rows:
    """Return how rows of logits predict the tokens that came, and how far they are from others.

    Parameters
    ----------
    logits : float32 [n, n_vocab]
        Finite.
    tokens : int [n]
        What came after each row.
    reference : float32 [n, n_vocab], optional
        Logits of the reference for the same rows.
    """
    mine, places = _log_probabilities(logits), np.arange(len(tokens))
    losses = -mine[places, tokens]
    if reference is None:
        return Rows(losses)
    theirs = _log_probabilities(reference)
    chances = np.exp(theirs)
    sums = (chances * (theirs - mine)).sum(axis=1)
    divergences = np.maximum(sums, 0.0)  # it is no less; sums are rounded
    same = logits.argmax(axis=1) == reference.argmax(axis=1)
    return Rows(losses, -theirs[places, tokens], divergences, same)


def _log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Return float64 log-probabilities of rows of logits."""
    values = logits.astype(np.float64)
    values -= values.max(axis=1, keepdims=True)
    values -= np.log(np.exp(values).sum(axis=1, keepdims=True))
    return values


def _estimate(values: np.ndarray) -> Estimate:
    n = len(values)
    error = float(values.std()) / math.sqrt(n - 1) if n > 10 else 0.0
    return Estimate(float(values.mean()), error)


def _perplexity(losses: np.ndarray) -> Estimate:
    mean = _estimate(losses)
    value = math.exp(mean.value) if mean.value < 700 else math.inf
    return Estimate(value, value * mean.error)
