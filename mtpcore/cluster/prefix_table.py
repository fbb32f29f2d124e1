"""Which replica holds what: a table of the beginnings of conversations that each was sent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

__all__ = ["PrefixTable"]

R = TypeVar("R", bound=Hashable)

_HOLDERS = 4
"""Replicas that are remembered of a beginning: those that were sent it last."""


class PrefixTable(Generic[R]):
    """Remembers which replicas were sent which beginnings, and chooses one for a conversation.

    Parameters
    ----------
    n_keys : int
        Beginnings that are remembered; those that were asked for longest ago are forgotten first,
        and of one conversation the longest.
    most_ahead : int
        Requests that a replica may have more than the one with fewest, to be sent another one for
        what it holds.
    """

    def __init__(self, n_keys: int = 1 << 16, most_ahead: int = 4) -> None:
        self._n_keys, self._most_ahead = n_keys, most_ahead
        self._holders: OrderedDict[bytes, dict[R, None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def choose(self, keys: Sequence[bytes], loads: Mapping[R, int]) -> R | None:
        """Return the replica that holds most of a conversation and is not too busy.

        Parameters
        ----------
        keys : sequence of bytes
            Of its beginnings, the shortest first.
        loads : mapping of replicas to int
            Those that there are, and how many requests each has.

        Returns
        -------
        R or None
            None: none holds anything of it, or those that do have too many requests.
        """
        if not loads:
            return None
        most = min(loads.values()) + self._most_ahead
        for key in reversed(keys):
            there = [one for one in self._holders.get(key, ()) if loads.get(one, most + 1) <= most]
            if there:
                return min(there, key=lambda one: loads[one])
        return None

    def add(self, keys: Sequence[bytes], replica: R) -> None:
        """Remember that a replica was sent a conversation."""
        for key in reversed(keys):  # the shortest last, so that it is forgotten last
            holders = self._holders.setdefault(key, {})
            holders.pop(replica, None)
            holders[replica] = None
            if len(holders) > _HOLDERS:
                del holders[next(iter(holders))]
            self._holders.move_to_end(key)
        while len(self._holders) > self._n_keys:
            self._holders.popitem(last=False)

    def keep(self, replicas: Collection[R]) -> None:
        """Forget what others than these replicas hold."""
        for key in list(self._holders):
            holders = self._holders[key]
            for gone in [one for one in holders if one not in replicas]:
                del holders[gone]
            if not holders:
                del self._holders[key]
