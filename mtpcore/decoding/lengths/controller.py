"""Controller: chooses draft lengths by the measured costs and acceptance rates of rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtpcore.decoding.lengths.costs import Costs, Passes
from mtpcore.decoding.lengths.outlook import Outlook
from mtpcore.decoding.lengths.policy import LengthDecision, Round
from mtpcore.decoding.lengths.rates import Rates
from mtpcore.decoding.lengths.reasons import explain

__all__ = ["Controller"]

_MEMORY, _POOL_MEMORY = 50.0, 200.0
"""Trials after which one counts for 1/e: of a text, and of all texts together."""
_EVERY, _MOST_EVERY = 4, 24
_LOOK, _LOOKING = 1e-4, 0.01
"""Rounds between two looks at all lengths: more where the seconds that a look takes for each
sequence would be more than this share of the time."""
_MARGIN = 0.03
"""How much faster another length must promise to be."""
_EXPLORE, _CURIOUS = 16, 6
"""Rounds between two tries of a neighbouring length, or of one whose price is not known."""
_PLAIN = 128
"""Rounds between two of plain decoding."""
_CLOSE, _CLOSE_PLAIN = 0.85, 32
"""Where plain decoding promises so much of the speed, rounds between two of it: the choice depends
on its price, and a round of it costs little."""
_TRIED = 2
"""Measurements after which a price is known, and rounds of plain decoding before drafts end."""
_WAIT, _MOST_WAITS = 16, 4
"""Rounds before a first probe; and how much the wait grows at most, doubling with each failure."""
_BURST = 4
"""Probes in a row while their drafts are accepted."""
_SPENT = 0.02
"""Share of the time that the first probes after switching off may take."""
_LASTING = 64
"""Rounds that a text is expected to have, until some have ended; each counts for a quarter."""


class _TextState:
    """What is decided and known of one sequence."""

    def __init__(self, pool: Rates) -> None:
        self.rates = Rates(0.0, _MEMORY, pool)
        self.k: int | None = None
        self.off = False
        self.trial = 0  # rounds of plain decoding left before drafts end
        self.wait = self.failures = self.probes = self.rounds = 0
        self.spent = 0.0


class Controller:
    """Picks the lengths that give most tokens a second, and none where drafting does not pay.

    It learns from the rounds as they run: what a pass costs by its number of rows, what drafts cost
    by their length, how often draft 1, 2, ... is accepted in each text. Nothing of it is assumed to
    be linear, so that experts, kernels' tiles and trees are priced as they are. The first rounds
    try the drafter's default length, plain decoding and one draft, to have prices to compare; of
    several sequences only one drafts until then.

    Afterwards a length is left for one that promises to be 3 % faster; now and then a neighbour is
    tried, and lengths whose price is not known yet but may be worth it. Drafting ends where plain
    decoding is faster. It is then probed again: after 16 rounds or when the probe is worth 2 % of
    the time since, whichever is later, and after each probe that fails twice as late, up to 4
    times. Up to 4 probes follow each other while their drafts are accepted. Sequences are probed in
    turn, since all of them wait for a probe, and failures count for all: many texts, or new ones,
    pay no more for probes than one. A text that the drafter has not read along is drafted for where
    that repays the reading in the rounds that it may still have: what texts mostly have, or as many
    as it has had.

    Prices are compared at one speed of the machine, which the passes show. Every 128 rounds one
    without drafts says whether that is all that has changed; every 32 rounds where plain decoding
    seems nearly as fast, since all depends on its price then.
    Rounds that are not warm say only what a pass costs at most; where no more is known of plain
    decoding, it is tried again soon.

    Parameters
    ----------
    limit : int
        The longest draft; of trees the deepest.
    start : int
        The length to begin with.
    expected : float
        The acceptance expected of first drafts.
    passes : Passes, optional
        Prices of passes, where others learn them.
    """

    def __init__(
        self,
        limit: int,
        *,
        start: int = 1,
        expected: float = 0.5,
        passes: Passes | None = None,
    ) -> None:
        self.limit = limit
        self.costs, self._prices_passes = Costs(passes), passes is None
        self.pool = Rates(expected, _POOL_MEMORY)
        start = min(start, limit)
        plain = [0] if self._prices_passes else []
        self._calibration = [1, *plain, start, *plain, start] if limit else []
        self._texts: dict[int, _TextState] = {}
        self._unread: dict[int, int] = {}  # tokens since the drafter last read a text
        self._start = start
        self._round = self._next_look = self._next_probe = self._last_try = self._turn = 0
        self._try: dict[int, int] = {}
        self._last_plain = 0  # when plain decoding was tried last
        self._is_close = False  # whether it is nearly as fast
        self._probed: int | None = None
        self._failures = 0  # of probes, whichever text it was
        self._lasting = float(_LASTING)  # rounds of a text
        self._first_seconds = 0.0
        self._due = False
        self._said: list[LengthDecision] = []

    def describe(self) -> dict[str, Any]:
        """Return what was learnt as plain data; seconds by rows and by draft length."""
        slowness = self.costs.slowness

        def seconds(prices: Mapping[int, float]) -> dict[int, float]:
            return {size: price * slowness for size, price in prices.items()}

        return {
            "rounds": self._round,
            "pass_seconds": seconds(self.costs.passes.points()),
            "draft_seconds": seconds(self.costs.drafts.points()),
            "choose_seconds": self.costs.choosing * slowness,
            "acceptance_rates": self.pool.rates(self.limit),
        }

    def choose(self, limits: Mapping[int, int], fixed: Mapping[int, int]) -> dict[int, int]:
        """Return draft lengths; see ``LengthPolicy``."""
        if not self.limit:
            return dict.fromkeys(limits, 0)
        new = [seq for seq in limits if seq not in self._texts]
        for seq in new:
            self._texts[seq] = _TextState(self.pool)
        if self._calibration:
            # Always the same sequence, for another one's drafter has a text to read first.
            k = self._calibration[0]
            roomy = (seq for seq, most in limits.items() if most >= k)
            one = next(roomy, max(limits, key=lambda seq: limits[seq], default=None))
            return {seq: min(k, most) if seq == one else 0 for seq, most in limits.items()}
        if new or self._due:
            self._due = False
            self._plan(limits, fixed)
        if self._probed not in limits:
            self._probed = self._find_probe(limits) if self._round >= self._next_probe else None
        asked = {}
        for seq, most in limits.items():
            k = 1 if seq == self._probed else self._texts[seq].k or 0
            k = self._try.get(seq, k)
            asked[seq] = min(k, most, self.limit)
        return asked

    def observe(self, done: Round) -> list[LengthDecision]:
        """Learn from a round and return what was decided; see ``LengthPolicy``."""
        self._round += 1
        self._learn(done)
        if self._calibration:
            if not done.prompt_rows and done.asked.keys() & self._texts.keys():
                self._calibrate(done)
        else:
            self._proceed(done)
        said, self._said = self._said, []
        return said

    @property
    def is_calibrating(self) -> bool:
        """Whether it has no prices to compare yet."""
        return bool(self._calibration)

    def is_curious(self, seq: int) -> bool:
        """Say whether the length that was chosen for a sequence is there to learn from."""
        return self.is_calibrating or seq == self._probed or seq in self._try

    def gain(self, seq: int, k: int) -> float:
        """Return how many times as fast a text is expected to be with drafts of a length."""
        reach = self._texts[seq].rates.reach(self.limit)
        alone = Outlook(self.costs, {seq: reach})
        return alone.speed({seq: k}) / alone.speed({seq: 0})

    def forget(self, seq: int) -> None:
        """Forget a sequence; prices and what is known of all texts together stay."""
        text = self._texts.pop(seq, None)
        if text is not None:
            self._lasting += 0.25 * (text.rounds - self._lasting)
        self._unread.pop(seq, None)
        self._probed = None if self._probed == seq else self._probed

    # Learning

    def _learn(self, done: Round) -> None:
        """Take prices and acceptance from a round; one with prompts in it has no price."""
        costs, now = self.costs, self._round
        drafting = longest = late = 0
        for seq, asked in done.asked.items():
            text, accepted = self._texts.get(seq), done.accepted[seq]
            if asked:
                drafting += 1
                longest = max(longest, asked)
                costs.observe_made(asked, done.made[seq])
                self.pool.observe(asked, accepted)
                if text is not None:
                    text.rates.observe(asked, accepted)
                late += self._is_late(seq)
                self._unread[seq] = accepted + 1
            elif seq in self._unread:
                self._unread[seq] += accepted + 1
        if not done.asked:
            return
        costs.observe_choices(len(done.asked) + sum(done.accepted.values()), done.choose_seconds)
        if done.prompt_rows:
            return
        # A price that was unknown until now is considered at once.
        self._due = self._due or not costs.passes.n_seen(done.rows)
        if self._prices_passes:
            costs.passes.observe(done.rows, done.pass_seconds, now, is_warm=done.is_warm)
        if late:
            usual = costs.drafts.at(drafting, longest) * costs.slowness
            costs.observe_catching_up(late, done.draft_seconds - usual)
        elif drafting:
            costs.observe_draft(drafting, longest, done.draft_seconds, now, is_warm=done.is_warm)

    def _is_late(self, seq: int) -> bool:
        """Say whether a drafter has more to read of a text than it mostly has."""
        return self._unread.get(seq, self.limit + 2) > self.limit + 1

    def _calibrate(self, done: Round) -> None:
        """Go on to the next length to be measured; stop early where drafting costs too much."""
        plain = not any(done.asked.values())
        # The first draft had a prompt to read. If its round cost much, the next one is short too.
        if plain and not len(self.costs.drafts) and 2 * done.pass_seconds < self._first_seconds:
            self._calibration.insert(1, 1)
        self._first_seconds = self._first_seconds or done.draft_seconds + done.pass_seconds
        del self._calibration[0]
        if done.is_warm and self._hopeless(len(done.asked)):
            self._calibration.clear()
        elif not self._calibration and not len(self.costs.drafts):
            self._calibration.append(self._start)
        self._due = not self._calibration

    def _hopeless(self, n: int) -> bool:
        """Say whether drafting loses even if all drafts are accepted and unknown costs are low.

        Of ``n`` sequences one may draft, or all.
        """
        if not len(self.costs.drafts):
            return False
        sure = Outlook(self.costs, dict.fromkeys(range(n), [1.0] * self.limit))
        none = dict.fromkeys(range(n), 0)
        plain = sure.speed(none)
        lengths = range(1, self.limit + 1)
        some = [{**none, 0: k} for k in lengths] + [dict.fromkeys(none, k) for k in lengths]
        return all(sure.highest_speed(drafts) < plain for drafts in some)

    # Deciding

    def _proceed(self, done: Round) -> None:
        """Advance all counters of rounds: trials, waits, probes, tries."""
        self._due = self._due or self._round >= self._next_look
        self._try = {}
        for seq in done.asked:
            text = self._texts.get(seq)
            if text is None:
                continue
            text.rounds += 1
            if text.off:
                self._count_off(text, seq, done)
            elif text.trial:
                text.trial -= 1
                self._due = self._due or not text.trial
        if self._round - self._last_try >= _EXPLORE:
            unsure = self.costs.passes.is_cold(len(done.asked))
            pause = _CLOSE_PLAIN if self._is_close else _PLAIN
            self._explore(done, unsure or self._round - self._last_plain >= pause)

    def _count_off(self, text: _TextState, seq: int, done: Round) -> None:
        """Count a round of a sequence that is not drafted for, or a probe of it."""
        accepted = done.accepted[seq]
        if not done.asked[seq]:
            text.wait -= 1
            if not text.wait:
                text.rates.doubt()
                text.spent, text.probes = 0.0, 0
            return
        passes, n = self.costs.passes, len(done.asked)
        drafting = sum(k > 0 for k in done.asked.values())
        plain = passes.at(n) / n
        more = passes.at(done.rows) - passes.at(done.rows - done.made[seq])
        drafted = done.draft_seconds / self.costs.slowness / drafting
        text.spent += drafted + more - accepted * plain
        self._due = True
        text.probes += 1
        worth = max(int(text.spent / (_SPENT * plain)), 0)
        if not accepted or text.probes == _BURST or self._hopeless(n):
            text.failures += 1
            self._failures += 1
            text.wait = max(_WAIT, worth) * _waits(text.failures)
            self._probed = None
        # All texts wait for a probe, so the next one's comes when they can afford it.
        self._next_probe = self._round + worth * _waits(self._failures) // n

    def _find_probe(self, limits: Mapping[int, int]) -> int | None:
        """Return which sequence to probe: the one that has waited longest for its turn."""
        texts = self._texts
        ready = [seq for seq in limits if texts[seq].off and texts[seq].wait <= 0]
        return min(ready, key=lambda seq: texts[seq].wait, default=None)

    def _explore(self, done: Round, plain: bool) -> None:
        """Let the next round try a neighbour of a length in use, or none, in turn.

        Where it is ``plain`` nobody drafts: with the price of that pass all others are compared.
        """
        using = [s for s in done.asked if s in self._texts and self._texts[s].k]
        if not using:
            return
        self._last_try = self._round
        if plain:
            self._try = dict.fromkeys(using, 0)
            self._last_plain = self._round
            return
        self._turn += 1
        seq = using[self._turn // 4 % len(using)]
        k = self._texts[seq].k or 0
        k = (k - 1, k + 1, 0, k + 1)[self._turn % 4]
        if k <= self.limit:
            self._try = {seq: k}

    def _plan(self, limits: Mapping[int, int], fixed: Mapping[int, int]) -> None:
        """Look at all lengths of all sequences."""
        outlook = self._outlook(limits, fixed)
        seconds = self.costs.slowness * self.costs.passes.at(len(limits))
        rounds = _LOOK * len(limits) / (_LOOKING * seconds)
        self._next_look = self._round + max(_EVERY, min(int(rounds), _MOST_EVERY))
        best = outlook.fastest()
        before = {seq: self._texts[seq].k or 0 for seq in limits}
        margin = _MARGIN / max(len(limits), 1)
        # Lengths stay where others gain little, all together or each by itself.
        changed = sum(best[seq] != k for seq, k in before.items())
        if outlook.speed(before) * (1 + margin * changed) >= outlook.speed(best):
            best = before
        for seq, k in before.items():
            alike = best[seq] == k
            if not alike and outlook.speed({**best, seq: k}) * (1 + margin) >= outlook.speed(best):
                best[seq] = k
        plain = outlook.speed(dict.fromkeys(best, 0))
        self._is_close = plain >= _CLOSE * outlook.speed(best)
        for seq in limits:
            self._settle(seq, best, outlook)
        self._be_curious(best, outlook)

    def _outlook(self, limits: Mapping[int, int], fixed: Mapping[int, int]) -> Outlook:
        reach = {seq: self._texts[seq].rates.reach(self.limit) for seq in limits}
        others = [(k, 1 + sum(self.pool.reach(k))) for k in fixed.values()]
        beginning = {
            seq: self.costs.catching_up / self._rounds_left(self._texts[seq])
            for seq in limits
            if self._is_late(seq)
        }
        return Outlook(self.costs, reach, others, beginning)

    def _rounds_left(self, text: _TextState) -> float:
        """Return how many rounds a text may still have: what others had, or as many as before."""
        return max(self._lasting - text.rounds, text.rounds, 1.0)

    def _settle(self, seq: int, best: Mapping[int, int], outlook: Outlook) -> None:
        """Let a sequence draft as was found best; drafts end only after rounds without them."""
        text, k = self._texts[seq], best[seq]
        before = text.k
        if k:
            if text.off:
                self._probed = None if self._probed == seq else self._probed
            text.k, text.off, text.trial = k, False, 0
        elif text.off:
            return
        elif before and text.trial == 0:
            text.k, text.trial = 0, _TRIED
            return
        elif text.trial:
            return
        else:
            text.k, text.off = 0, True
            text.wait = _WAIT * _waits(text.failures + 1)
        if text.k != before or text.off:
            reason = explain(seq, best, outlook)
            self._said.append(LengthDecision(self._round, seq, k, reason))

    def _be_curious(self, best: Mapping[int, int], outlook: Outlook) -> None:
        """Try a length of unknown cost if it may pay."""
        if self._round - self._last_try < _CURIOUS:
            return
        for seq, k in best.items():
            if not k:
                continue
            speeds = {
                other: outlook.highest_speed({**best, seq: other})
                for other in range(1, self.limit + 1)
                if other != k and not self._knows(outlook, {**best, seq: other})
            }
            other = max(speeds, key=lambda length: speeds[length], default=k)
            if other != k and speeds[other] > outlook.speed(best) * (1 + _MARGIN):
                self._try, self._last_try = {seq: other}, self._round
                return

    def _knows(self, outlook: Outlook, lengths: Mapping[int, int]) -> bool:
        return self.costs.passes.n_seen(round(outlook.rows(lengths))) >= _TRIED


def _waits(failures: int) -> int:
    """Return the wait after ``failures`` in a row, as a multiple of the first one."""
    return int(min(2 ** max(failures - 1, 0), _MOST_WAITS))
