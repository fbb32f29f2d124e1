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
    """Counts of tokens and passes, and times in seconds.

    Attributes
    ----------
    tokens : int
        All tokens of the texts.
    prompt_tokens : int
        All tokens of the prompts.
    prefill_tokens : int
        Tokens of prompts that were read in ``prefill_seconds``.
    cached_tokens, cached_prompts : int
        Tokens of prompts that were in the KV cache already and were not processed again, and how
        many prompts had some.
    prompts : int
        Prompts that gave a text its first token. One that is answered by an end-of-text token gave
        none.
    shifts : int
        How often a context was full and was shifted.
    passes : int
        Runs of the target after the prompts.
    verify_steps : int
        Drafts that were verified: one for each sequence that had some, in each pass.
    drafted : int
        Drafted tokens that were verified; of a tree every node.
    accepted : int
        Drafted tokens that became part of a text. Where a text ends inside a draft, what the target
        agreed with beyond the end does not count, nor does a drafted end-of-text token.
    accepted_per_position : list of int
        Item i counts the steps in which draft i + 1 in a row was accepted, on whichever branch.
    invalid : int
        Drafted ids that were no tokens.
    paused : int
        How often a sequence got no further draft because a hidden row was not finite, or because
        the drafter cannot read an embedding row of the text.
    draft_seconds : float
        Drafting. A drafter reads the prompt in this time, too.
    verify_seconds : float
        Runs of the target, but for those in ``prefill_seconds``.
    choose_seconds : float
        Choosing tokens from logits.
    commit_seconds : float
        What follows the choice in a round.
    length_seconds : float
        Choosing draft lengths.
    prefill_seconds : float
        Runs of the target that only read prompts. In all others prompts share a run with drafts.
    shift_seconds : float
        Shifting contexts.
    asked : int
        How often a drafter was asked, for a sequence in a pass.
    lengths : dict of int to int
        How often k drafts in a row were verified, for a sequence in a pass, by k.
    decisions : list of LengthDecision
        The latest decisions of ``draft="auto"`` with their reasons, the newest last.
    drafters : dict of str to (int, int, int)
        By the drafter's name: drafts that it made, tokens in them, accepted ones.
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
    asked: int = 0
    lengths: dict[int, int] = msgspec.field(default_factory=dict)
    decisions: list[LengthDecision] = msgspec.field(default_factory=list)
    drafters: dict[str, tuple[int, int, int]] = msgspec.field(default_factory=dict)

    def save(self) -> SavedStats:
        """Return what ``restore`` needs; decisions are noted after a round, not in it."""
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
    def text_seconds(self) -> float:
        """All times but that of runs that only read prompts."""
        seconds = self.draft_seconds + self.verify_seconds + self.choose_seconds
        return seconds + self.commit_seconds + self.length_seconds + self.shift_seconds

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens for each second after the prompt."""
        seconds = self.text_seconds
        return (self.tokens - self.prompts) / seconds if seconds else 0.0

    @property
    def prefill_tokens_per_second(self) -> float:
        """Tokens of prompts for each second of the runs that only read prompts."""
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def acceptance_per_position(self) -> list[float]:
        """Of all steps the share in which draft i + 1 was accepted, however many were drafted."""
        return [n / self.verify_steps for n in self.accepted_per_position]
