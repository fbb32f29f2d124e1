"""Counts and times of drafting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import msgspec

from mtpcore.boundary.arguments import read
from mtpcore.decoding.lengths.policy import LengthDecision

__all__ = ["Stats"]

SavedStats = tuple[tuple[object, ...], list[int], dict[int, int], dict[str, tuple[int, int, int]]]
_KEPT = 100
"""Decisions about lengths that are kept, the latest ones."""


class Stats(msgspec.Struct):
    """Counts of drafted and accepted tokens and of passes, and times in seconds.

    ``verify_steps`` counts the steps in which drafts of a sequence were verified, several in one
    pass where several sequences draft. ``drafted`` counts all drafts that were verified, of a tree
    every node. ``accepted`` counts those that became part of a text: where a text ends inside a
    draft, what the target agreed with beyond its last token does not count, and neither does a
    drafted end-of-text token, which no text has. ``accepted_per_position[i]`` counts the steps in
    which draft i + 1 in a row was accepted, on whichever branch; ``invalid`` the drafted ids that
    were no tokens; ``paused`` how often a sequence got no further draft because a hidden row was
    not finite or an embedding row stands in its text; ``tokens`` all tokens of the texts,
    ``passes`` the target's runs after the prompts. ``prompt_tokens`` are all tokens of the prompts;
    ``cached_tokens`` of them, in ``cached_prompts`` prompts, were in the KV cache already and were
    not processed again. ``prompts`` are those whose own run gave a text its first token; one that
    is answered by an end-of-text token gave none. ``verify_seconds`` is the target's runs,
    ``choose_seconds`` the choice of tokens from their logits, ``commit_seconds`` what follows it,
    ``length_seconds`` the choice of draft lengths. A drafter reads the prompt in ``draft_seconds``.

    ``prefill_tokens`` are those tokens of prompts that were read in ``prefill_seconds``, the runs
    in which nothing else was done; in all others prompts share a run with drafts. ``shifts`` times
    a context was full and was shifted, in ``shift_seconds``.

    ``drafters`` counts by name who made the drafts: (drafts made, drafted tokens, accepted ones).
    ``lengths[k]`` counts how often k drafts were asked for, for a sequence in a pass; ``decisions``
    are the latest decisions of ``draft="auto"`` with their reasons, the newest last.
    """

    tokens: int = 0
    prompt_tokens: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    cached_prompts: int = 0
    prompts: int = 0
    shifts: int = 0
    passes: int = 0
    verify_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = msgspec.field(default_factory=list)
    invalid: int = 0
    paused: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    choose_seconds: float = 0.0
    commit_seconds: float = 0.0
    length_seconds: float = 0.0
    prefill_seconds: float = 0.0
    shift_seconds: float = 0.0
    lengths: dict[int, int] = msgspec.field(default_factory=dict)
    decisions: list[LengthDecision] = msgspec.field(default_factory=list)
    drafters: dict[str, tuple[int, int, int]] = msgspec.field(default_factory=dict)

    def save(self) -> SavedStats:
        """Return what ``restore`` needs; decisions are noted behind a round, not in it."""
        per_position, lengths = self.accepted_per_position.copy(), self.lengths.copy()
        return msgspec.structs.astuple(self), per_position, lengths, self.drafters.copy()

    def restore(self, saved: SavedStats) -> None:
        """Count what was counted then."""
        for name, value in zip(self.__struct_fields__, saved[0], strict=True):
            setattr(self, name, value)
        self.accepted_per_position, self.lengths = saved[1].copy(), saved[2].copy()
        self.drafters = saved[3].copy()

    def note(self, decisions: Sequence[LengthDecision]) -> None:
        """Keep decisions about lengths; raise BatchError where they are something else."""
        self.decisions += read(
            decisions, list[LengthDecision], "no decisions about lengths", wanted="LengthDecisions"
        )
        del self.decisions[:-_KEPT]

    def count(self, drafted: int, depth: int, accepted: int) -> None:
        """Count one verified draft of one sequence, ``depth`` tokens in a row at most."""
        self.verify_steps += 1
        self.drafted += drafted
        self.accepted += accepted
        missing = depth - len(self.accepted_per_position)
        self.accepted_per_position += [0] * missing
        for i in range(accepted):
            self.accepted_per_position[i] += 1

    def count_maker(self, name: str, drafted: int, accepted: int, drafts: int = 1) -> None:
        """Count what a drafter made."""
        before = self.drafters.get(name, (0, 0, 0))
        self.drafters[name] = (before[0] + drafts, before[1] + drafted, before[2] + accepted)

    @classmethod
    def sum(cls, runs: Iterable[Stats]) -> Stats:
        """Return the counts and times of several runs as one; of decisions the latest are kept.

        Parameters
        ----------
        runs : iterable of Stats
            In their order; they are not changed.
        """
        total = cls()
        for run in runs:
            for name, value in msgspec.structs.asdict(run).items():
                if isinstance(value, int | float):
                    setattr(total, name, getattr(total, name) + value)
            pairs = zip_longest(total.accepted_per_position, run.accepted_per_position, fillvalue=0)
            total.accepted_per_position = [n + other for n, other in pairs]
            for k, n in run.lengths.items():
                total.lengths[k] = total.lengths.get(k, 0) + n
            for name, (drafts, drafted, accepted) in run.drafters.items():
                total.count_maker(name, drafted, accepted, drafts)
            total.note(run.decisions)
        return total

    @property
    def acceptance(self) -> float:
        """The acceptance rate: accepted drafts over drafted ones (0 where nothing was drafted)."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_pass(self) -> float:
        """Committed tokens for each run of the target after the prompt."""
        return (self.tokens - self.prompts) / self.passes if self.passes else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens for each second after the prompt."""
        seconds = self.draft_seconds + self.verify_seconds + self.choose_seconds
        seconds += self.commit_seconds + self.length_seconds + self.shift_seconds
        return (self.tokens - self.prompts) / seconds if seconds else 0.0

    @property
    def prefill_tokens_per_second(self) -> float:
        """Tokens of prompts for each second of the runs that only read prompts."""
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def acceptance_per_position(self) -> list[float]:
        """Of all steps the share in which draft i + 1 was accepted, however many were drafted."""
        return [n / self.verify_steps for n in self.accepted_per_position]
