"""Which generator uses which sequence of a Cross, so that several can share it."""

from __future__ import annotations

from mtpcore.cross.encoder import Encoder
from mtpcore.cross.sequence import SequenceStates
from mtpcore.runtime.runner import GraphRunner

__all__ = ["Owners"]


class Owners:
    """The owner of each sequence, if it has one; sequences that were filled by hand have none.

    An owner may release a sequence with its tokens, and another one claim it with them. If it is
    changed by hand meanwhile, nobody can claim it until it is empty. A sequence counts as used when
    it is claimed, released, or shared with another one.

    Parameters
    ----------
    target : GraphRunner
    states : SequenceStates
    encoder : Encoder, optional
    """

    def __init__(
        self, target: GraphRunner, states: SequenceStates, encoder: Encoder | None
    ) -> None:
        self._target, self._states, self._encoder = target, states, encoder
        self._owners: list[object | None] = [None] * target.n_seq_max
        self._last_used = [0] * target.n_seq_max

    def find(self, owner: object) -> int | None:
        """Return the sequence of an ``owner``; None where it has none."""
        return next((seq for seq, holder in enumerate(self._owners) if holder is owner), None)

    def free(self) -> list[int]:
        """Return the sequences that may be claimed: empty ones, and those that were released."""
        return [
            seq
            for seq, (owner, state) in enumerate(zip(self._owners, self._states, strict=True))
            if owner is None
            and (not self._n_held(seq) or (state.is_released and not state.undecided))
        ]

    def _n_held(self, seq: int) -> int:
        """Return how many tokens a sequence has, those of a prompt that an encoder read too."""
        n_encoded = self._encoder.runner.lengths[seq] if self._encoder is not None else 0
        return self._target.lengths[seq] + n_encoded

    def known(self) -> list[int]:
        """Return the sequences whose tokens were all processed for owners; none is empty."""
        free, lengths = self.free(), self._target.lengths
        return [
            seq
            for seq, owner in enumerate(self._owners)
            if lengths[seq] and (owner is not None or seq in free)
        ]

    def use(self, seq: int) -> None:
        """Note that a sequence is used now."""
        self._last_used[seq] = max(self._last_used) + 1

    def last_used(self, seq: int) -> int:
        """Return when a sequence was used last; later is more."""
        return self._last_used[seq]

    def claim(self, seq: int, owner: object) -> None:
        """Give a free sequence to an ``owner`` until it is released."""
        self._owners[seq] = owner
        self.use(seq)

    def release(self, seq: int) -> None:
        """Let others claim a sequence, with the tokens that it holds."""
        self._states[seq].is_released = True
        self._owners[seq] = None
        self.use(seq)

    def describe(self) -> list[str]:
        """Say in words why each sequence cannot be claimed."""
        free = self.free()
        return [
            f"sequence {seq}: {self._n_held(seq)} tokens processed by hand"
            if owner is None
            else f"sequence {seq}: {owner!r}"
            for seq, owner in enumerate(self._owners)
            if seq not in free
        ]
