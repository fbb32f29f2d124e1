"""Acceptance by the dice: what drafting would cost and gain at a given rate."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Annotated, Any

from msgspec import Meta

from mtpcore.boundary.arguments import Finite, read
from mtpcore.errors import SamplingError

__all__ = ["SyntheticAcceptance"]


_Draft = Annotated[int, Meta(ge=0, le=1 << 16)]


def _read(value: object, kind: Any, what: str, wanted: str) -> Any:
    where = "SyntheticAcceptance"
    return read(value, kind, what, where=where, wanted=wanted, error=SamplingError)


class SyntheticAcceptance:
    """Accepts drafts at chosen rates, whatever the target says; only timing means anything.

    Parameters
    ----------
    rates : sequence of float
        ``rates[i]`` is the share of steps in which draft i + 1 is accepted: in [0, 1], not rising.
    never : collection of int
        Tokens that are never accepted: those that end a text.
    seed : int

    Raises
    ------
    SamplingError
        Rates out of range.
    """

    def __init__(
        self, rates: Sequence[float], *, never: Collection[int] = (), seed: int = 0
    ) -> None:
        self.rates: tuple[float, ...] = _read(rates, tuple[Finite, ...], "no rates", "numbers")
        if not all(0 <= b <= a <= 1 for a, b in zip((1.0, *self.rates), self.rates, strict=False)):
            raise SamplingError(
                "rates do not rise", where="SyntheticAcceptance", wanted="0..1", got=self.rates
            )
        self._never: frozenset[int] = _read(never, frozenset[int], "no token ids", "token ids")
        self._random = random.Random(_read(seed, int, "no seed", "an int"))

    @classmethod
    def of_length(
        cls,
        length: float,
        n: int,
        *,
        longest: int = 0,
        never: Collection[int] = (),
        seed: int = 0,
    ) -> SyntheticAcceptance:
        """Return rates r, r**2, ..., r**n whose sum is ``length`` - 1.

        Parameters
        ----------
        length : float
            Tokens of a step on average, the target's own included: 1 .. n + 1.
        n : int
            The draft length for which this holds.
        longest : int
            Longer drafts go on with r**(n + 1), ..., up to this length.

        Raises
        ------
        SamplingError
            The length is out of range.
        """
        n = _read(n, _Draft, "bad draft length", "1..65536")
        longest = _read(longest, _Draft, "bad draft length", "0..65536")
        length = _read(length, Finite, "bad length", f"1..{n + 1}")
        if not 1 <= length <= n + 1:
            raise SamplingError(
                "bad length", where="SyntheticAcceptance", wanted=f"1..{n + 1}", got=length
            )
        low, high = 0.0, 1.0
        for _ in range(53):  # halving exhausts a float
            rate = (low + high) / 2
            if sum(rate**i for i in range(1, n + 1)) < length - 1:
                low = rate
            else:
                high = rate
        return cls([high**i for i in range(1, max(n, longest) + 1)], never=never, seed=seed)

    def __call__(self, position: int, token: int) -> bool:
        """Decide on draft number ``position`` (from 0), all before it being accepted."""
        if token in self._never or position >= len(self.rates):
            return False
        before = self.rates[position - 1] if position else 1.0
        return before > 0 and self._random.random() < self.rates[position] / before
