"""Controller: chooses draft lengths by the measured costs and acceptance rates of rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from mtpcore.decoding.lengths.costs import Passes
from mtpcore.decoding.lengths.policy import LengthDecision, Proposed, Round
from mtpcore.decoding.lengths.prospects import Expectation, Prospects, TextState
from mtpcore.decoding.lengths.reasons import explain
from mtpcore.decoding.lengths.search import Offer, best_of, lengths_of, options

__all__ = ["Controller"]

_RECENT = 32.0
"""Rounds after which one counts for 1/e in how fast decoding is."""
_ASKED = 16.0
"""Rounds after which one counts for 1/e in what asking those brings that find drafts."""
_TRIES, _FIRST_TRIES, _MOST_TRIES = 0.005, 0.5, 6.0
"""Of the tokens written so many may be lost by trying what is not known; to begin with, so many for
each text at once; and so many for each are saved up at most."""
_SAID = 16
"""Rounds between two notes on one text."""
_GLANCE, _RARELY = 4, 16
"""Rounds for which a choice stays where what it tries may be lost so often, and passes have as many
rows as were often measured: one of them is looked at, as they are alike. Where nothing is found for
long it is the second number."""

_MANY = 4
"""Texts at once for which it takes long to say what a drafter brings: where none is to ask it, that
stays for ``_GLANCE`` rounds."""


class Turn(NamedTuple):
    """What is chosen in the round at hand.

    ``worth`` is how many tokens a second of it has to bring, ``n_rows`` the rows of its pass
    without drafts that are chosen. ``plans`` say by sequence whom it asks for how much,
    ``drafting`` which drafter that reads texts it has. ``kept`` are the rows of drafts that were
    kept so far, and ``lost`` the tokens that are lost by trying something.
    """

    worth: float
    n_rows: int
    plans: dict[int, dict[str, int]]
    drafting: dict[int, str]
    kept: int = 0
    lost: float = 0.0


class Controller:
    """Picks the lengths that give most tokens a second, and none where drafting does not pay.

    It learns from the rounds as they run: what a pass costs by its number of rows, what drafts cost
    by their length, how often draft 1, 2, ... is accepted: by how sure its drafter is of it, where
    that says so, and in each text. Nothing of it is assumed to be linear, so that experts, kernels'
    tiles and trees are priced as they are. Prices are compared at one speed of the machine, which
    the passes show. Until something was measured, declarations say what is expected.

    A draft is worth the tokens that it brings, less those that would be written in its time at the
    speed of the last rounds. Drafters that find drafts and need no reading are asked first, as long
    as what they bring repays the asking; what they find is verified as deep as that gains most,
    where it gains more than the drafts of a graph would. Of the drafters with graphs each text asks
    the one that gains most.

    What is not known, or was not measured for long, may cost less than it seems to. It is tried
    where that would gain most, and as long as all that is lost by trying is no more than half a
    percent. A text that a drafter has not read along is drafted for where that repays the reading
    in the rounds that it may still have: what texts mostly have, or as many as it has had.

    Parameters
    ----------
    drafters : mapping of str to Expectation
        By role, in the order in which they are asked where others do not gain more.
    """

    def __init__(self, drafters: Mapping[str, Expectation]) -> None:
        self.passes = Passes()
        self.drafters = {role: Prospects(role, one) for role, one in drafters.items()}
        self._only_finds = all(one.finds for one in drafters.values())
        self._longest = max((one.limit for one in drafters.values()), default=0)
        self._usual_rows = 0  # of the last round, where passes of as many were often measured
        self._n_alike = 0  # rounds in which nothing was found, since the last one looked at
        self._stays = 1  # rounds for which what was planned stays where passes are as usual
        self._found_at = 0  # the round in which drafts were found last
        self._texts: dict[int, TextState] = {}
        self._round = 0
        self._written = (8.0, 8.0)  # tokens lately, and what they would be without drafts
        self._tries = 0.0  # tokens that may be lost by trying
        self._most_texts = 0  # at once so far
        self._unasked: set[int] = set()  # texts of which none was to ask a drafter that reads them
        self._turn = self._planned = Turn(0.0, 0, {}, {})
        self._found: set[str] = set()  # who found drafts in this round

    def describe(self) -> dict[str, Any]:
        """Return what was learnt as plain data; seconds by rows and by draft length."""
        slowness = self.passes.slowness
        return {
            "rounds": self._round,
            "pass_seconds": {n: s * slowness for n, s in self.passes.points().items()},
            "drafters": {
                role: one.describe(slowness, self._round) for role, one in self.drafters.items()
            },
        }

    # Choosing

    def choose(
        self, limits: Mapping[int, int], fixed: Mapping[int, int]
    ) -> dict[int, dict[str, int]]:
        """Return whom each sequence asks, in this order, and for how much; see ``LengthPolicy``."""
        self._found.clear()
        plans = self._planned.plans
        stays = self._round % self._stays and self._usual_rows and limits.keys() == plans.keys()
        if stays and not fixed and min(limits.values(), default=0) >= self._longest:
            self._turn = self._planned
            return plans
        self._catch_up()
        for seq in limits:
            if seq not in self._texts:
                self._texts[seq] = TextState()
        n = len(limits) + len(fixed)
        if n > self._most_texts:
            self._tries += _FIRST_TRIES * (n - self._most_texts)
            self._most_texts = n
        turn = self._turn = Turn(0.0, n + sum(fixed.values()), {seq: {} for seq in limits}, {})
        if len(self.passes) and limits:
            written, plainly = self._written
            worth = max(written / plainly, 1.0) * n / self.passes.at(n)
            turn = self._turn = self._ask_finders(turn._replace(worth=worth), limits)
            turn = self._turn = self._ask_graphs(turn, limits)
        is_long = self._only_finds and self._round - self._found_at > _GLANCE * _RARELY
        rounds = [_RARELY] * is_long + [_GLANCE]
        may_lose = max(self._tries, _FIRST_TRIES)
        self._stays = next((n for n in rounds if n * turn.lost <= may_lose), 1)
        self._planned = turn
        return turn.plans

    def _ask_finders(self, turn: Turn, limits: Mapping[int, int]) -> Turn:
        """Plan to ask those that find drafts, as long as what they bring repays it."""
        lost = turn.lost
        for role, one in self.drafters.items():
            if not one.expected.finds:
                continue
            price = turn.worth * one.seconds(len(limits), 1, self.passes.at(1))
            missing = price - one.worth * len(limits)
            if missing > 0 and missing > self._tries - lost:
                continue
            lost += max(missing, 0.0)
            for seq, most in limits.items():
                if longest := min(one.expected.limit, most):
                    turn.plans[seq][role] = longest
        return turn._replace(lost=lost)

    def _ask_graphs(self, turn: Turn, limits: Mapping[int, int]) -> Turn:
        """Plan to ask drafters that read texts: each text the one that gains most."""
        graphs = [one for one in self.drafters.values() if not one.expected.finds]
        drafting, lost = turn.drafting, turn.lost
        if limits.keys() == self._unasked and self._round % _GLANCE:
            return turn
        for one, seqs in self._shared(graphs, turn, limits):
            offer = self._offer(one, {seq: limits[seq] for seq in seqs})
            chosen, _, lost = self._decide(offer, turn.n_rows, turn.worth, lost)
            for seq, k in chosen.items():
                if k:
                    turn.plans[seq][one.role] = k
                    drafting[seq] = one.role
        self._unasked = set() if drafting or len(limits) < _MANY else set(limits)
        return turn._replace(lost=lost)

    def _shared(
        self, graphs: list[Prospects], turn: Turn, limits: Mapping[int, int]
    ) -> Iterable[tuple[Prospects, list[int]]]:
        """Yield drafters, and the sequences to which each of them promises most."""
        if len(graphs) < 2:
            yield from ((one, [*limits]) for one in graphs)
            return
        of: dict[str, list[int]] = {one.role: [] for one in graphs}
        for seq, most in limits.items():
            hopes = []
            for one in graphs:
                offer = self._offer(one, {seq: most})
                found = options(offer, turn.n_rows, self._pass_seconds, turn.worth)
                hopes.append(max(option.hope for option in found))
            of[graphs[hopes.index(max(hopes))].role].append(seq)
        yield from ((one, of[one.role]) for one in graphs if of[one.role])

    def _offer(self, one: Prospects, limits: Mapping[int, int]) -> Offer:
        """Return what a drafter that reads texts may draft for some of them."""
        texts, now, limit = self._texts, self._round, one.expected.limit
        return Offer(
            {seq: one.reach(texts[seq], min(limit, most), now) for seq, most in limits.items()},
            lambda seq, k: one.rows(k),
            partial(self._draft_seconds, one),
            {seq: one.reading(texts[seq]) for seq in limits},
        )

    def keep(self, role: str, proposed: Mapping[int, Proposed]) -> dict[int, int]:
        """Return how deep drafts are to be verified; see ``LengthPolicy``."""
        one, turn, now = self.drafters[role], self._turn, self._round
        if not one.expected.finds or not turn.worth:
            return {seq: draft.depth for seq, draft in proposed.items()}
        offer = Offer(
            {
                seq: one.reach(self._texts[seq], draft.depth, now, draft.confidence)
                for seq, draft in proposed.items()
                if seq in self._texts
            },
            lambda seq, k: k * proposed[seq].rows / proposed[seq].depth,
        )
        others = turn.drafting.keys() - proposed
        planned = sum(turn.plans[seq][turn.drafting[seq]] for seq in others)
        n_rows = turn.n_rows + turn.kept + planned
        kept, gain, lost = self._decide(offer, n_rows, turn.worth, turn.lost)
        for seq in turn.drafting.keys() & kept.keys():
            graph = self.drafters[turn.drafting[seq]]
            k = turn.plans[seq][graph.role]
            instead = self._gain_alone(seq, k, self._offer(graph, {seq: k}), turn)
            if self._gain_alone(seq, kept[seq], offer, turn) < instead:
                kept[seq] = 0
        rows = sum(round(offer.rows(seq, k)) for seq, k in kept.items())
        self._turn = turn._replace(kept=turn.kept + rows, lost=lost)
        n_asked = sum(role in plan for plan in turn.plans.values())
        one.count_worth(max(gain, 0.0) / n_asked, 1.0 - 1.0 / _ASKED)
        self._found.add(role)
        self._found_at, self._stays = self._round, min(self._stays, _GLANCE)
        return {seq: kept.get(seq, draft.depth) for seq, draft in proposed.items()}

    def _decide(
        self, offer: Offer, n_rows: int, worth: float, lost: float
    ) -> tuple[dict[int, int], float, float]:
        """Return the lengths to take, what they gain, and what trying them has lost then."""
        found = options(offer, n_rows, self._pass_seconds, worth)
        taken, loses = best_of(found, self._tries - lost)
        return lengths_of(offer, taken), taken.gain, lost + loses

    def _gain_alone(self, seq: int, k: int, offer: Offer, turn: Turn) -> float:
        """Return what one sequence gains if it alone drafts."""
        alone = offer._replace(reach={seq: offer.reach[seq][:k]})
        return options(alone, turn.n_rows, self._pass_seconds, turn.worth)[-1].gain

    def _pass_seconds(self, n_rows: float) -> tuple[float, float]:
        return self.passes.at(n_rows), self.passes.lowest(n_rows, self._round)

    def _draft_seconds(self, one: Prospects, n_seqs: int, longest: int) -> tuple[float, float]:
        plain = self.passes.at(1)
        return (
            one.seconds(n_seqs, longest, plain),
            one.least_seconds(n_seqs, longest, plain, self._round),
        )

    # Learning

    def observe(self, done: Round) -> list[LengthDecision]:
        """Learn from a round and return what was decided; see ``LengthPolicy``."""
        self._round += 1
        now, n = self._round, len(done.asked)
        stays = now % self._stays and done.rows == self._usual_rows
        if stays and self._only_finds and not done.makers and not done.prompt_rows:
            self._n_alike += 1
            return []
        self._catch_up()
        tokens = n + sum(done.accepted.values())
        self._tries = min(self._tries - self._turn.lost + _TRIES * tokens, _MOST_TRIES * max(n, 1))
        fade, (written, plainly) = 1.0 - 1.0 / _RECENT, self._written
        for role in done.seconds_of.keys() & self.drafters.keys() - self._found:
            self.drafters[role].count_worth(0.0, 1.0 - 1.0 / _ASKED)
        if not stays and not done.prompt_rows:
            self._observe_drafts(done, now)
        self._observe_accepted(done, now)
        seconds = done.pass_seconds + done.choose_seconds
        if done.prompt_rows or not n:
            # Most of its rows have no logits: it says what they cost until others do.
            if not self.passes.n_seen(done.rows):
                self.passes.observe(done.rows, seconds, now, is_warm=done.is_warm)
            return []
        if not stays:
            self.passes.observe(done.rows, seconds, now, is_warm=done.is_warm)
            self._usual_rows = done.rows if self.passes.is_sure(done.rows) else 0
        taken = self.passes.at(done.rows) + done.draft_seconds / self.passes.slowness
        plain = n * taken / self.passes.at(n)
        self._written = written * fade + tokens, plainly * fade + plain
        return self._note(done)

    def _catch_up(self) -> None:
        """Count the rounds that were not looked at, in which nothing was found."""
        rounds, n = self._n_alike, len(self._turn.plans)
        if rounds:
            fade = (1.0 - 1.0 / _RECENT) ** rounds
            more = n * _RECENT * (1.0 - fade)
            written, plainly = self._written
            self._written, self._n_alike = (written * fade + more, plainly * fade + more), 0
            asked = {role for plan in self._turn.plans.values() for role in plan}
            for role in asked:
                self.drafters[role].count_worth(0.0, (1.0 - 1.0 / _ASKED) ** rounds)
            tries = self._tries + (_TRIES * n - self._turn.lost) * rounds
            self._tries = min(tries, _MOST_TRIES * max(n, 1))

    def _observe_accepted(self, done: Round, now: int) -> None:
        """Learn how drafts were accepted, and who read which text."""
        for seq, accepted in done.accepted.items():
            text, role = self._texts.get(seq), done.makers.get(seq)
            if text is not None:
                text.n_rounds += 1
                for known in text.unread:
                    text.unread[known] += accepted + 1
            one = self.drafters.get(role) if role is not None else None
            if one is None:
                continue
            tried = done.made[seq] if one.expected.finds else done.asked[seq]
            if not one.expected.finds:
                one.observe_rows(done.asked[seq], done.made[seq])
            confidence = done.confidences.get(seq)
            one.observe_accepted(text, tried, accepted, now, confidence)

    def _observe_drafts(self, done: Round, now: int) -> None:
        """Learn what drafts cost."""
        slowness, n = self.passes.slowness, len(done.seconds_of)
        around = max(done.draft_seconds - sum(done.seconds_of.values()), 0.0)  # what they share
        for role, own in done.seconds_of.items():
            one, seconds = self.drafters.get(role), own + around / n
            if one is None:
                continue
            asked = [seq for seq, plan in self._turn.plans.items() if role in plan]
            made = [seq for seq, maker in done.makers.items() if maker == role]
            seqs = asked if one.expected.finds else made
            texts = [self._texts[seq] for seq in seqs if seq in self._texts]
            if not texts:
                continue
            longest = max(done.asked[seq] for seq in seqs)
            plain = self.passes.at(1) if len(self.passes) else seconds
            usual = one.seconds(len(texts), longest, plain)
            one.observe_drafts(texts, longest, seconds / slowness, usual, now, is_warm=done.is_warm)

    def _note(self, done: Round) -> list[LengthDecision]:
        """Return the lengths that are others than were noted last, now and then, and why."""
        said: list[LengthDecision] = []
        if self._turn.lost or self._round % _GLANCE or not self._longest:
            return said
        for seq, asked in done.asked.items():
            text = self._texts.get(seq)
            role = done.makers.get(seq, next(iter(self.drafters)))
            if text is None or role not in self.drafters:
                continue
            made = done.made[seq]
            k = made if self.drafters[role].expected.finds else asked if made else 0
            before, at = text.said
            is_early = not k and text.n_rounds < _SAID
            if k == before or is_early or self._round - at < _SAID:
                continue
            text.said = k, self._round
            one = self.drafters[role]
            confidence = done.confidences.get(seq)
            reach = one.reach(text, one.expected.limit, self._round, confidence)
            reason = explain(k, reach, one, len(done.asked), self.passes.at)
            said.append(LengthDecision(self._round, seq, k, reason, role))
        return said

    def forget(self, seq: int) -> None:
        """Forget a sequence; prices and what is known of all texts together stay."""
        text, self._usual_rows = self._texts.pop(seq, None), 0
        if text is not None:
            for one in self.drafters.values():
                one.forget(text)
