"""Who uses which sequence of a Cross, so that several can take turns on it."""

from __future__ import annotations

from mtpcore.runtime.runner import GraphRunner

__all__ = ["Owners"]


class Owners:
    """One owner or none for each sequence; what was processed by hand has none and is no-one's.

    Parameters
    ----------
    target : GraphRunner
    """

    def __init__(self, target: GraphRunner) -> None:
        self._target = target
        self._owners: list[object | None] = [None] * target.n_seq_max

    def claim(self, owner: object) -> int | None:
        """Return a sequence that is ``owner``'s alone until it is released; None: none is free.

        It is the one that the owner has, or an empty one that nobody has.
        """
        owners = self._owners
        for seq, one in enumerate(owners):
            if one is owner:
                return seq
        for seq, one in enumerate(owners):
            if one is None and not self._target.lengths[seq]:
                owners[seq] = owner
                return seq
        return None

    def has(self, owner: object, seq: int) -> bool:
        """Say whether a sequence is ``owner``'s."""
        return self._owners[seq] is owner

    def release(self, seq: int) -> None:
        """Let others claim a sequence."""
        self._owners[seq] = None

    def describe(self) -> list[str]:
        """Return who or what keeps each sequence from being claimed, in words."""
        return [
            f"sequence {seq}: {n} tokens processed by hand"
            if owner is None
            else f"sequence {seq}: {owner!r}"
            for seq, (owner, n) in enumerate(zip(self._owners, self._target.lengths, strict=True))
            if owner is not None or n
        ]
