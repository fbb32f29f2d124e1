"""The protocol of draft-length policies, and what these are told of each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

__all__ = ["LengthDecision", "LengthPolicy", "Proposed", "Round"]


class LengthDecision(msgspec.Struct, frozen=True):
    """A draft length that was chosen: for which sequence, from which round on, and why.

    ``drafter`` is the role of the drafter that it is chosen for.
    """

    round: int
    seq: int
    draft: int
    reason: str
    drafter: str = ""


class Proposed(NamedTuple):
    """A draft before it is verified.

    ``depth`` is how many tokens follow each other, ``rows`` how many there are: more in a tree.
    ``confidence`` is how probable the drafter says its first token is; None: it does not say.
    """

    depth: int
    rows: int
    confidence: float | None


class Round(msgspec.Struct, frozen=True):
    """One round of draft and verify; times in seconds.

    By sequence: ``asked`` is the draft length (0: none was asked for), ``made`` how many tokens
    were drafted and verified, ``accepted`` how many of them in a row. ``rows`` is all that the
    target's pass had, ``prompt_rows`` those of prompts among them. ``draft_seconds`` are those of
    choosing lengths and drafting, where somebody was asked; ``pass_seconds`` is the whole
    round without ``draft_seconds`` and ``choose_seconds``, the choice of tokens from their logits.
    Where a round is not warm, a backend packed weights in it or tried out how to read them, so
    others take less. ``makers`` are the roles that made the drafts, where one was made;
    ``seconds_of`` what each of them took. ``confidences`` are those of drafts that have one.
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
    confidences: Mapping[int, float] = {}
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

    def keep(self, role: str, proposed: Mapping[int, Proposed]) -> Mapping[int, int]:
        """Return how deep the drafts of a role are to be verified, by sequence.

        Where it is 0, the next drafter is asked. It is called after ``choose``, for each role that
        drafted for any of its sequences. By default all is verified.
        """
        return {seq: draft.depth for seq, draft in proposed.items()}

    def observe(self, done: Round) -> Sequence[LengthDecision]:
        """Learn from a round; return what was decided since the last one."""

    def forget(self, seq: int) -> None:
        """Forget a sequence: its text is finished."""
