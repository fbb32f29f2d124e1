"""The protocol of draft-length policies, and the measurements that they get of each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

__all__ = ["LengthDecision", "LengthPolicy", "Round"]


class LengthDecision(msgspec.Struct, frozen=True):
    """A draft length that was chosen: for which sequence, from which round on, and why.

    ``drafter`` is the role of the drafter that it is chosen for, where there are several.
    """

    round: int
    seq: int
    draft: int
    reason: str
    drafter: str = ""


class Round(msgspec.Struct, frozen=True):
    """One round of draft and verify; times in seconds.

    By sequence: ``asked`` is the draft length (0: none was asked for), ``made`` how many tokens
    were drafted, ``accepted`` how many of them in a row. ``rows`` is all that the target's pass
    had, ``prompt_rows`` those of prompts among them. ``pass_seconds`` is the whole round without
    ``draft_seconds`` and ``choose_seconds``, the choice of tokens from their logits. Where a round
    is not warm, a backend packed weights in it or tried out how to read them, so others take less.
    ``makers`` are the roles that made the drafts, where one was made; ``seconds_of`` what each of
    them took.
    """

    asked: Mapping[int, int]
    made: Mapping[int, int]
    accepted: Mapping[int, int]
    rows: int
    prompt_rows: int
    draft_seconds: float
    pass_seconds: float
    choose_seconds: float
    makers: Mapping[int, str] = {}
    seconds_of: Mapping[str, float] = {}
    is_warm: bool = True


@runtime_checkable
class LengthPolicy(Protocol):
    """Chooses draft lengths, round by round. The text does not depend on its choices."""

    def choose(
        self, limits: Mapping[int, int], fixed: Mapping[int, int]
    ) -> Mapping[int, int | Mapping[str, int]]:
        """Return draft lengths by sequence.

        Of several drafters a length may be one for each, by role: they are asked in this order.

        Parameters
        ----------
        limits : mapping of seq to int
            The sequences to choose for, and the longest draft that each has room for.
        fixed : mapping of seq to int
            Sequences of the same round whose length is given.
        """

    def observe(self, done: Round) -> Sequence[LengthDecision]:
        """Learn from a round; return what was decided since the last one."""

    def forget(self, seq: int) -> None:
        """Forget a sequence: its text is finished."""
