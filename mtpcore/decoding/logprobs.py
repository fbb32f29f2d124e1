"""Log-probabilities of tokens, from the rows of logits that chose them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["TokenLogprobs", "log_softmax"]


class TokenLogprobs(msgspec.Struct, frozen=True):
    """How likely a token was: the log-softmax of the model's own logits, before any settings.

    Attributes
    ----------
    token : int
        The token that was chosen.
    logprob : float
        Its natural log-probability, computed in float64.
    top : tuple of (int, float)
        The likeliest tokens and their log-probabilities, best first; ties go to the lowest id.
    text : str
        What the token writes, control tokens included, with U+FFFD for a part of a character;
        empty where the model has no tokenizer.
    top_texts : tuple of str
        What those of ``top`` write.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    text: str = ""
    top_texts: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, row: NDArray[np.float64], token: int, n: int, write: Callable[[int], str] | None = None
    ) -> TokenLogprobs:
        """Read them from float64[n_vocab], what ``log_softmax`` gave; ``n`` are the likeliest.

        ``write`` returns the text of a token.
        """
        likeliest, write = _likeliest(row, n), write or _write_nothing
        return cls(
            token,
            float(row[token]),
            tuple((i, float(row[i])) for i in likeliest),
            write(token),
            tuple(map(write, likeliest)),
        )


def _write_nothing(token: int) -> str:
    return ""


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return float64[n_vocab] of one row; NaN counts as -inf, and +inf takes all probability."""
    wide = logits.astype(np.float64)
    wide[np.isnan(wide)] = -np.inf
    top = wide.max()
    gaps = np.full(len(wide), -np.inf) if np.isinf(top) else wide - top
    gaps[wide == top] = 0.0
    return gaps - np.log(np.exp(gaps).sum())  # type: ignore[no-any-return]


def _likeliest(row: NDArray[np.float64], n: int) -> list[int]:
    n = min(n, len(row))
    if n == 0:
        return []
    least = np.partition(row, len(row) - n)[len(row) - n]
    among = np.flatnonzero(row >= least)
    return among[np.argsort(-row[among], kind="stable")][:n].tolist()  # type: ignore[no-any-return]
