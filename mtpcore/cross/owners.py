"""Which generator uses which sequence of a Cross, so that several can share it."""

from __future__ import annotations

from mtpcore.runtime.runner import GraphRunner

__all__ = ["Owners"]


class Owners:
    """One owner or none for each sequence; what was processed by hand has none and is no-one's.

    A sequence that its owner released with tokens keeps them until another owner claims it. What
    counts as use of a sequence is that it is claimed, released, or shared with another one.

    Parameters
    ----------
    target : GraphRunner
    """

    def __init__(self, target: GraphRunner) -> None:
        self._target = target
        self._owners: list[object | None] = [None] * target.n_seq_max
        self._released = [0] * target.n_seq_max  # tokens that a sequence had when it was released
        self._last_used = [0] * target.n_seq_max

    def find(self, owner: object) -> int | None:
        """Return the sequence that is ``owner``'s; None where it has none."""
        return next((seq for seq, holder in enumerate(self._owners) if holder is owner), None)

    def free(self) -> list[int]:
        """Return the sequences that may be claimed: empty ones, and those that were released."""
        return [
            seq
            for seq, (owner, n) in enumerate(zip(self._owners, self._target.lengths, strict=True))
            if owner is None and n in (0, self._released[seq])
        ]

    def known(self) -> list[int]:
        """Return the sequences with tokens that none was processed by hand."""
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
        """Make a free sequence ``owner``'s alone until it is released."""
        self._owners[seq] = owner
        self.use(seq)

    def release(self, seq: int) -> None:
        """Let others claim a sequence, with the tokens that it holds."""
        self._released[seq] = self._target.lengths[seq]
        self._owners[seq] = None
        self.use(seq)

    def describe(self) -> list[str]:
        """Say in words why each sequence cannot be claimed."""
        free = self.free()
        return [
            f"sequence {seq}: {n} tokens processed by hand"
            if owner is None
            else f"sequence {seq}: {owner!r}"
            for seq, (owner, n) in enumerate(zip(self._owners, self._target.lengths, strict=True))
            if seq not in free
        ]
