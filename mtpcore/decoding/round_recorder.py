"""What a round of requests does, and what its parts cost."""

from __future__ import annotations

from collections.abc import Mapping, Sized

from mtpcore.cross import Cross, DraftPlan, RoundDrafts, Verdict
from mtpcore.declarations.draft_tree import depth_of
from mtpcore.decoding.lengths.policy import Round
from mtpcore.decoding.request import Progress, Request
from mtpcore.decoding.stats import Stats
from mtpcore.decoding.stopwatch import Stopwatch

__all__ = ["RoundRecorder", "longest"]


def longest(plan: DraftPlan, maker: str | None = None) -> int:
    """Return how many drafts were asked for: of who made them, or at most."""
    return max(plan.values(), default=0) if maker is None else plan[maker]


class RoundRecorder:
    """Follows a round part by part, and adds to the statistics.

    Each of ``planned``, ``drafted`` and ``verified`` ends a part: its seconds are those since the
    part before it.

    Parameters
    ----------
    cross : Cross
    stats : Stats
        Of all rounds.
    watch : Stopwatch
        Begun with the round.
    """

    def __init__(self, cross: Cross, stats: Stats, watch: Stopwatch) -> None:
        self._cross, self._stats, self._watch = cross, stats, watch
        self._invalid, self._paused = cross.invalid, cross.paused
        self._chosen_before = cross.speculation.choose_seconds
        self._plans: Mapping[int, DraftPlan] = {}
        self._drafted = RoundDrafts({}, {}, {}, {})
        self._verdicts: Mapping[int, Verdict] = {}
        self._plan_seconds = self._draft_seconds = self._pass_seconds = self._choose_seconds = 0.0
        self._n_prompt = 0

    def planned(self, plans: Mapping[int, DraftPlan]) -> None:
        """Record whom each sequence asks for how much."""
        self._plan_seconds = self._watch.lap()
        self._stats.length_seconds += self._plan_seconds
        self._plans = plans

    def drafted(self, drafted: RoundDrafts) -> None:
        """Record what was drafted."""
        self._draft_seconds = self._watch.lap()
        self._drafted = drafted

    @property
    def n_verified(self) -> int:
        """Rows of the target's pass that are drafts and the tokens before them."""
        return sum(len(draft) + 1 for draft in self._drafted.drafts.values())

    def verified(
        self, verdicts: Mapping[int, Verdict], prefill: Mapping[int, Sized], n_encoded: int
    ) -> None:
        """Record the target's pass, with the parts of prompts in it, and what an encoder read."""
        self._pass_seconds = self._watch.lap()
        self._choose_seconds = self._cross.speculation.choose_seconds - self._chosen_before
        self._verdicts = verdicts
        self._n_prompt = sum(map(len, prefill.values())) + n_encoded

    def accepted(self, seq: int, progress: Progress) -> None:
        """Record where its drafts bring a request."""
        self._stats.tokens += len(progress.tokens)
        draft, maker = self._drafted.drafts[seq], self._drafted.makers.get(seq)
        if len(draft):
            n_accepted = sum(progress.drafted)
            self._stats.count(len(draft), depth_of(draft), n_accepted)
            if maker is not None:
                name = self._cross.speculation.names[maker]
                self._stats.count_maker(name, len(draft), n_accepted)

    def read(self, request: Request, progress: Progress) -> None:
        """Record where a part of its prompt brings a request."""
        stats = self._stats
        if request.n_prefilled == request.n_cached:
            stats.prompt_tokens += len(request.given)
            stats.cached_tokens += request.n_cached
            stats.cached_prompts += request.n_cached > 0
        stats.prompts += len(progress.tokens)
        stats.tokens += len(progress.tokens)

    def end(self) -> Round:
        """Add the round to the statistics, and return it; ``pass_seconds`` is 0 until it ends."""
        cross, stats, drafted = self._cross, self._stats, self._drafted
        asked = {s: longest(plan, drafted.makers.get(s)) for s, plan in self._plans.items()}
        stats.draft_seconds += self._draft_seconds
        stats.invalid += cross.invalid - self._invalid
        stats.paused += cross.paused - self._paused
        if self._verdicts:
            stats.passes += 1
            stats.verify_seconds += self._pass_seconds - self._choose_seconds
            stats.choose_seconds += self._choose_seconds
            stats.asked += sum(k > 0 for k in asked.values())
            for draft in drafted.drafts.values():
                k = depth_of(draft)
                stats.lengths[k] = stats.lengths.get(k, 0) + 1
        else:
            stats.prefill_seconds += self._pass_seconds
            stats.prefill_tokens += self._n_prompt
        used = cross.contexts.values() if any(asked.values()) else [cross.llm]
        return Round(
            asked=asked,
            made={seq: len(draft) for seq, draft in drafted.drafts.items()},
            accepted={seq: verdict.accepted for seq, verdict in self._verdicts.items()},
            rows=self.n_verified + self._n_prompt,
            prompt_rows=self._n_prompt,
            draft_seconds=self._draft_seconds + (self._plan_seconds if drafted.seconds else 0.0),
            pass_seconds=0.0,
            choose_seconds=self._choose_seconds,
            makers=drafted.makers,
            seconds_of=drafted.seconds,
            confidences=drafted.confidences,
            is_warm=all(context.runner.is_warm for context in used),
        )
