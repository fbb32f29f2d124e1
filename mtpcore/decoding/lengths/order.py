"""OrderController: of several drafters, which ones a text asks, in which order, for how much."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from mtpcore.decoding.lengths.controller import Controller
from mtpcore.decoding.lengths.costs import Passes
from mtpcore.decoding.lengths.policy import LengthDecision, Round

__all__ = ["OrderController"]

_TURN = 32
"""Rounds of a text after which a drafter that others precede drafts first, to be compared."""


class OrderController:
    """Picks for each text the drafters that pay, the one that pays most first.

    Each drafter has a ``Controller``, which chooses its lengths as if it drafted alone, from its
    own rates and costs; what passes cost all of them share. A controller that has something to find
    out is asked first. Of the others those come first whose drafts promise most; those that promise
    less than plain decoding are not asked. So n-gram lookup goes before a head where a text repeats
    itself, and after it, or away, where its finds mislead.

    A drafter that mostly proposes nothing is judged by the drafts that it made.

    Parameters
    ----------
    controllers : mapping of str to Controller
        By role, in the order in which they are asked at first; made with ``passes``.
    passes : Passes
        What they know of the price of passes.
    sparing : collection of str
        Those that may propose nothing.
    """

    def __init__(
        self,
        controllers: Mapping[str, Controller],
        passes: Passes,
        sparing: Collection[str] = (),
    ) -> None:
        self.controllers, self.passes = dict(controllers), passes
        self._sparing = frozenset(sparing)
        self._lengths: dict[str, dict[int, int]] = {}
        self._asked: dict[int, dict[str, int]] = {}
        self._rounds: dict[int, int] = {}
        self._round = 0

    def describe(self) -> dict[str, Any]:
        """Return what was learnt as plain data, by role."""
        return {role: controller.describe() for role, controller in self.controllers.items()}

    def choose(
        self, limits: Mapping[int, int], fixed: Mapping[int, int]
    ) -> dict[int, dict[str, int]]:
        """Return draft lengths by sequence and role, in order; see ``LengthPolicy``."""
        if not len(self.passes):  # a plain pass is what everything is compared with
            self._lengths = {role: dict.fromkeys(limits, 0) for role in self.controllers}
            self._asked = {seq: {} for seq in limits}
            return self._asked
        self._lengths = {
            role: controller.choose(limits, fixed) for role, controller in self.controllers.items()
        }
        self._asked = {seq: self._order(seq) for seq in limits}
        return self._asked

    def _order(self, seq: int) -> dict[str, int]:
        lengths = {role: chosen[seq] for role, chosen in self._lengths.items() if chosen[seq]}
        curious = [role for role in lengths if self.controllers[role].is_curious(seq)]
        settled = [role for role in lengths if role not in curious]
        settled.sort(key=lambda role: -self.controllers[role].gain(seq, lengths[role]))
        turn = self._rounds[seq] = self._rounds.get(seq, 0) + 1
        if turn % _TURN == 0 and settled:
            at = turn // _TURN % len(settled)
            settled.insert(0, settled.pop(at))
        return {role: lengths[role] for role in (*curious, *settled)}

    def observe(self, done: Round) -> list[LengthDecision]:
        """Learn from a round and return what was decided; see ``LengthPolicy``."""
        self._round += 1
        if done.asked and not done.prompt_rows:
            self.passes.observe(done.rows, done.pass_seconds, self._round, is_warm=done.is_warm)
        said: list[LengthDecision] = []
        for role, controller in self.controllers.items():
            asked = {
                seq: k
                for seq in done.asked
                if (k := self._seen(role, controller, seq, done)) is not None
            }
            if not asked:
                continue
            part = msgspec.structs.replace(
                done,
                asked=asked,
                made={seq: done.made[seq] if k else 0 for seq, k in asked.items()},
                accepted={seq: done.accepted[seq] for seq in asked},
                draft_seconds=done.seconds_of.get(role, 0.0),
                choose_seconds=done.choose_seconds * len(asked) / len(done.asked),
            )
            said += [msgspec.structs.replace(one, drafter=role) for one in controller.observe(part)]
        return said

    def _seen(self, role: str, controller: Controller, seq: int, done: Round) -> int | None:
        """Return the length that a drafter's controller learns from; None: nothing."""
        maker, wanted = done.makers.get(seq), self._lengths.get(role, {}).get(seq, 0)
        if maker == role:
            return done.asked[seq]
        if controller.is_calibrating:
            return None
        if not wanted or (maker is None and role in self._sparing):
            return 0
        last = next(reversed(self._asked.get(seq, {"": 0})), None)
        return done.asked[seq] if maker is None and role == last else None

    def forget(self, seq: int) -> None:
        """Forget a sequence; prices and the acceptance of all texts together stay."""
        for controller in self.controllers.values():
            controller.forget(seq)
        self._rounds.pop(seq, None)
