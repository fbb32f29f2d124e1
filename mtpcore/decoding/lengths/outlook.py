"""How fast a round would be with these draft lengths, and the lengths with which it is fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mtpcore.decoding.lengths.costs import Costs

__all__ = ["Outlook"]


class Outlook:
    """Sequences that share a round, what their drafts would bring, and what they would cost.

    Speed is tokens a second of all sequences together: they wait for each other, so each one's
    speed is its share of the same round.

    Parameters
    ----------
    reach : mapping of seq to sequence of float
        For each sequence to choose for: the share of steps in which draft 1, 2, ... is accepted.
    fixed : sequence of (int, float)
        Drafts of other sequences: their length, and the tokens that a step gives them.
    beginning : mapping of seq to float
        Seconds to add to a round for what a first draft of these sequences has to read before it.
    """

    def __init__(
        self,
        costs: Costs,
        reach: Mapping[int, Sequence[float]],
        fixed: Sequence[tuple[int, float]] = (),
        beginning: Mapping[int, float] | None = None,
    ) -> None:
        self.costs, self.reach, self.beginning = costs, reach, beginning or {}
        longest = max((len(shares) for shares in reach.values()), default=0)
        self._added = [costs.rows(k) for k in range(longest + 1)]
        self._n_fixed = sum(length > 0 for length, _ in fixed)
        self._longest = max((length for length, _ in fixed), default=0)
        self._rows = len(reach) + sum(1 + costs.rows(length) for length, _ in fixed)
        self._tokens = len(reach) + sum(tokens for _, tokens in fixed)

    def rows(self, lengths: Mapping[int, int]) -> float:
        """Return the rows of a pass."""
        return self._rows + sum([self._added[k] for k in lengths.values()])

    def tokens(self, lengths: Mapping[int, int]) -> float:
        """Return the tokens that a round gives."""
        return self._tokens + sum([sum(self.reach[seq][:k]) for seq, k in lengths.items()])

    def draft_seconds(self, lengths: Mapping[int, int]) -> float:
        """Return the price of the drafts."""
        return self.costs.drafts.at(*self._drafts(lengths))

    def _drafts(self, lengths: Mapping[int, int]) -> tuple[int, int]:
        """Return how many sequences draft, and the longest of their drafts."""
        drafting = sum(k > 0 for k in lengths.values()) + self._n_fixed
        return drafting, max(self._longest, *lengths.values(), 0)

    def _beginning_seconds(self, lengths: Mapping[int, int]) -> float:
        return sum([seconds for seq, seconds in self.beginning.items() if lengths.get(seq)])

    def speed(self, lengths: Mapping[int, int]) -> float:
        """Return the tokens a second."""
        tokens = self.tokens(lengths)
        seconds = self.costs.passes.at(self.rows(lengths)) + self.draft_seconds(lengths)
        seconds += self._beginning_seconds(lengths)
        return tokens / (seconds + self.costs.choosing * tokens)

    def highest_speed(self, lengths: Mapping[int, int]) -> float:
        """Return the speed if what was not measured costs half of what it seems to."""
        passes, drafts = self.costs.passes, self.costs.drafts
        rows, tokens = self.rows(lengths), self.tokens(lengths)
        drafting = self._drafts(lengths)
        low = passes.at_least(rows) + drafts.at_least(*drafting)
        seconds = (passes.at(rows) + drafts.at(*drafting) + low) / 2
        seconds += self._beginning_seconds(lengths)
        return tokens / (seconds + self.costs.choosing * tokens)

    def fastest(self) -> dict[int, int]:
        """Return the lengths with which the round is fastest.

        Drafts are added one by one, the likeliest first, to whichever sequence they belong; a row
        more costs the same wherever it is. All of these steps are compared, for the price of rows
        has jumps: five rows may be expensive, and eight cheap.
        """
        lengths = dict.fromkeys(self.reach, 0)
        steps = sorted(
            ((r, seq) for seq, shares in self.reach.items() for r in shares), reverse=True
        )
        costs, added, rows, tokens = self.costs, self._added, self._rows, self._tokens
        drafting, longest, beginning = self._n_fixed, self._longest, 0.0
        best, n_best = self.speed(lengths), 0
        most = 2 * costs.passes.largest
        for n, (share, seq) in enumerate(steps, 1):
            k = lengths[seq] = lengths[seq] + 1
            rows += added[k] - added[k - 1]
            if rows > most:
                break
            tokens += share
            if k == 1:
                drafting += 1
                beginning += self.beginning.get(seq, 0.0)
            longest = max(longest, k)
            seconds = costs.passes.at(rows) + costs.drafts.at(drafting, longest) + beginning
            speed = tokens / (seconds + costs.choosing * tokens)
            if speed > best:
                best, n_best = speed, n
        lengths = dict.fromkeys(self.reach, 0)
        for _, seq in steps[:n_best]:
            lengths[seq] += 1
        return lengths
