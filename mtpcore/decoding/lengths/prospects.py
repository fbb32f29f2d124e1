"""What is known of a drafter: what its drafts cost, and how often they are accepted."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from mtpcore.decoding.lengths.costs import DraftCurves
from mtpcore.decoding.lengths.rates import PRIOR, Calibration, Rates

__all__ = ["Expectation", "Prospects", "TextState"]

_LEVELS = 12
"""Of confidence: drafts of which a drafter is as sure are counted together."""
_LASTING = 64
"""Rounds that a text is expected to have, until some have ended; each counts for a quarter."""


class Expectation(NamedTuple):
    """What a declaration says of a drafter.

    Attributes
    ----------
    limit : int
        The longest draft; of trees the deepest.
    acceptance : float
        How often first drafts are accepted.
    cost : float
        Of one more draft, as a share of what a pass of the target costs.
    finds : bool
        Whether it needs no reading of a text, and may propose nothing.
    """

    limit: int
    acceptance: float = 0.5
    cost: float = 0.0
    finds: bool = False


class TextState:
    """What is known of one text: how it takes each drafter's drafts, and who has read it."""

    def __init__(self) -> None:
        self.n_rounds = 0
        self.calibrations: dict[str, Calibration] = {}
        self.unread: dict[str, int] = {}  # tokens since a drafter last read it, by role
        self.said = (-1, -(1 << 30))  # the length that was noted, and when


class Prospects:
    """A drafter, as far as it matters how much it should draft.

    Prices are seconds at one speed of the machine; see ``Passes``.

    Parameters
    ----------
    role : str
    expected : Expectation
    """

    def __init__(self, role: str, expected: Expectation) -> None:
        self.role, self.expected = role, expected
        self.curves = DraftCurves()
        self.catching_up = 0.0  # seconds to read a text that it has not read along
        self.worth = expected.acceptance  # tokens that it brings when it is asked, lately
        self._n_tried = 0
        self._rates: dict[int | None, Rates] = {}
        self._rows: dict[int, float] = {}
        self._lasting = float(_LASTING)  # rounds of a text

    def seconds(self, n_seqs: int, longest: int, pass_seconds: float) -> float:
        """Return the price of a draft of ``n_seqs`` texts, beside a pass of one row."""
        if len(self.curves):
            return self.curves.at(n_seqs, longest)
        return self.expected.cost * longest * pass_seconds

    def least_seconds(self, n_seqs: int, longest: int, pass_seconds: float, now: int) -> float:
        """Return what it may cost at least in round ``now``, by what is known of it."""
        if len(self.curves):
            return self.curves.lowest(n_seqs, longest, now)
        return self.seconds(n_seqs, longest, pass_seconds)

    def rows(self, length: int) -> float:
        """Return how many rows a draft of a length adds to a pass: of a tree more, or fewer."""
        made = self._rows
        if not length or length in made or not made:
            return made.get(length, float(length))
        longest = max(made)
        return length * made[longest] / longest

    def reach(
        self, text: TextState, longest: int, now: int, confidence: float | None = None
    ) -> list[float]:
        """Return how often draft 1, 2, ... of a text is accepted, with all before it."""
        rates = self._rates_of(confidence).rates(longest, now)
        return self._calibration(text).reach(rates, now)

    def reading(self, text: TextState) -> tuple[float, float]:
        """Return the seconds to read what it has not read of a text, if that is much.

        First as the rounds share it that the text may still have: what others had, or as many as
        it has had; then all at once. Until enough drafts were tried, as many rounds as that takes
        share it: they may show that it was read in vain.
        """
        if not self._is_late(text):
            return 0.0, 0.0
        rounds = max(self._lasting - text.n_rounds, text.n_rounds, 1.0)
        if self._n_tried < PRIOR:
            rounds = min(rounds, PRIOR)
        return self.catching_up / rounds, self.catching_up

    def _is_late(self, text: TextState) -> bool:
        """Say whether it has more to read of a text than it mostly has."""
        limit = self.expected.limit
        return not self.expected.finds and text.unread.get(self.role, limit + 2) > limit + 1

    def count_worth(self, tokens: float, fade: float) -> None:
        """Count what it brought when it was asked."""
        self.worth = fade * self.worth + (1.0 - fade) * tokens

    def observe_drafts(
        self,
        texts: Collection[TextState],
        longest: int,
        seconds: float,
        usual: float,
        now: int,
        *,
        is_warm: bool,
    ) -> None:
        """Take what it took to draft for these texts, where it ``usual``-ly takes so long."""
        late = sum(map(self._is_late, texts))
        if late:
            each = max(seconds - usual, 0.0) / late
            self.catching_up += 0.5 * (each - self.catching_up) if self.catching_up else each
        else:
            longest = 1 if self.expected.finds else longest
            self.curves.observe(len(texts), longest, seconds, now, is_warm=is_warm)

    def observe_accepted(
        self, text: TextState | None, tried: int, accepted: int, now: int, confidence: float | None
    ) -> None:
        """Take how many of the ``tried`` drafts of a text were accepted in a row."""
        rates, self._n_tried = self._rates_of(confidence), self._n_tried + 1
        if text is not None:
            expected = rates.rates(min(accepted + 1, tried), now)
            self._calibration(text).observe(expected, accepted, now)
            text.unread[self.role] = accepted + 1
        rates.observe(tried, accepted, now)

    def observe_rows(self, asked: int, made: int) -> None:
        """Take how many tokens a draft of a length asked for has."""
        before = self._rows.get(asked, made)
        self._rows[asked] = before + 0.1 * (made - before)

    def forget(self, text: TextState) -> None:
        """Learn how long a text was that is finished."""
        self._lasting += 0.25 * (text.n_rounds - self._lasting)

    def describe(self, slowness: float, now: int) -> dict[str, Any]:
        """Return what was learnt as plain data; seconds by draft length.

        Of drafts that come with a confidence, acceptance is known by that.
        """
        overall = self._rates.get(None)
        by_confidence = {
            round((level + 0.5) / _LEVELS, 2): self._rates[level].rates(1, now)[0]
            for level in sorted(level for level in self._rates if level is not None)
        }
        return {
            "draft_seconds": {k: s * slowness for k, s in self.curves.points().items()},
            "acceptance_rates": overall.rates(self.expected.limit, now) if overall else [],
            "acceptance_by_confidence": by_confidence,
        }

    def _rates_of(self, confidence: float | None) -> Rates:
        level = None if confidence is None else min(int(confidence * _LEVELS), _LEVELS - 1)
        found = self._rates.get(level)
        if found is None:
            first = self.expected.acceptance if level is None else (level + 0.5) / _LEVELS
            found = self._rates[level] = Rates(first)
        return found

    def _calibration(self, text: TextState) -> Calibration:
        found = text.calibrations.get(self.role)
        if found is None:
            found = text.calibrations[self.role] = Calibration()
        return found
