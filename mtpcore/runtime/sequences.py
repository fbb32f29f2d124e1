"""The sequences of one graph: how long each is, and its rows in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.boundary.arguments import read_below
from mtpcore.boundary.arrays import integers
from mtpcore.errors import BatchError, LinkError, StateError
from mtpcore.memory import GroupedKV, PagedKV
from mtpcore.runtime.adapters import Adapters, AdapterTable, Chosen, SavedAdapters
from mtpcore.runtime.positions import Positions

__all__ = ["ContextMemory", "SequenceRecord", "Sequences"]

ContextMemory: TypeAlias = PagedKV | GroupedKV


class SequenceRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is saved of a sequence beside its rows.

    ``positions`` int32[n, axes]: of rows with positions of their own, and of those before them.
    ``adapters`` are the digests and scales of its adapters.
    """

    length: int
    positions: bytes
    adapters: SavedAdapters = ()


class Sequences:
    """Sequences 0 .. n_seq_max - 1 and what is stored of them.

    ``lengths[seq]`` is the place after the newest row. ``undecided[seq]`` are the places of a draft
    tree of which no path was chosen yet. ``positions`` says where text goes on after rows with
    positions of their own.

    Parameters
    ----------
    n_seq_max : int
    memory : PagedKV or GroupedKV, optional
        None where the graph remembers nothing.
    n_axes : int
        Numbers of a position.
    adapters : Adapters, optional
        Those that sequences may have; ``adapters`` says which each has.
    """

    def __init__(
        self,
        n_seq_max: int,
        memory: ContextMemory | None,
        n_axes: int = 1,
        adapters: Adapters | None = None,
    ) -> None:
        self.n_seq_max, self.memory = n_seq_max, memory
        self.lengths = [0] * n_seq_max
        self.undecided: dict[int, tuple[int, int]] = {}
        self.positions = Positions(n_axes)
        self.adapters = AdapterTable(adapters)

    def check(self, seq: int) -> int:
        """Return the sequence; raise BatchError where there is none of this number."""
        fix = "give one of these numbers, or make n_seq_max larger"
        return read_below(seq, self.n_seq_max, "no such sequence", fix=fix)

    def n_held(self, seq: int) -> int:
        """Return how many rows there are of a sequence, or were delivered to it; 0: it is empty."""
        delivered = self.memory.delivered if self.memory else None
        return self.lengths[seq] or (delivered.length(seq) if delivered else 0)

    def check_decided(self, seq: int) -> None:
        """Raise BatchError where a draft tree of a sequence is undecided."""
        if seq in self.undecided:
            raise BatchError(
                "a draft tree is undecided", where=f"sequence {seq}", fix="call keep() first"
            )

    def check_rewind(self, seq: int, length: int) -> tuple[int, int]:
        """Return both; raise BatchError or CapacityError where it cannot go back to a place."""
        seq = self.check(seq)
        end, where = self.lengths[seq] + 1, f"sequence {seq}"
        length = read_below(length, end, "rewinds to a place that is not there", where=where)
        if length > self.undecided.get(seq, (length, length))[0]:
            self.check_decided(seq)
        if self.memory:
            self.memory.check_rewind(seq, length)
        return seq, length

    def nearest(self, seq: int, length: int) -> int:
        """Return the greatest place, at most ``length``, whose state recurrent layers have."""
        if self.memory is None or length >= self.lengths[seq]:
            return length
        return self.memory.nearest(seq, length)

    def decide(self, seq: int, path: Sequence[int]) -> Callable[[], None]:
        """Return what keeps of a draft tree's rows only this path; called twice it keeps it once.

        Raises
        ------
        BatchError
            There is no tree, or no such path.
        """
        seq = self.check(seq)
        if seq not in self.undecided:
            raise BatchError("no draft tree to choose from", where=f"sequence {seq}")
        begin, end = self.undecided[seq]
        steps: list[int] = integers(path, "path").tolist()
        if (
            np.ndim(steps) != 1
            or sorted(set(steps)) != steps
            or (steps and not 0 <= steps[0] <= steps[-1] < end - begin)
        ):
            raise BatchError(
                "a path ascends through the tree's rows",
                where=f"sequence {seq}",
                wanted=f"0..{end - begin - 1}",
                got=steps,
            )
        return partial(self._keep, seq, begin, steps)

    def extend(
        self,
        ranges: Mapping[int, tuple[int, int]],
        positions: Mapping[int, NDArray[np.int32]],
        *,
        branching: bool,
    ) -> None:
        """Count rows that were stored at these places; of branching ones a path is kept later.

        ``positions[seq]`` are int32[n, axes] where rows have positions of their own.
        """
        for seq, (begin, end) in ranges.items():
            self.lengths[seq] = end
            if branching:
                self.undecided[seq] = (begin, end)
        for seq, own in positions.items():
            self.positions.note(seq, ranges[seq][0], own, branching=branching)

    def rewind(self, seq: int, length: int) -> None:
        """Forget the rows of a sequence from place ``length`` on.

        Raises
        ------
        BatchError, CapacityError
            The place lies beyond the sequence, or too far back for a sliding window, or recurrent
            layers have no state of it any more.
        """
        seq, length = self.check_rewind(seq, length)
        if self.memory:
            self.memory.rewind(seq, length)
        self.lengths[seq] = self.memory.length(seq) if self.memory else length
        self.positions.rewind(seq, self.lengths[seq])
        self.undecided.pop(seq, None)

    def remove(self, seq: int) -> None:
        """Forget a sequence, what was delivered to it, and its adapters."""
        self.rewind(seq, 0)
        self.adapters.set(seq, ())
        if self.memory:
            self.memory.remove(seq)

    def deliver(self, seq: int, n: int) -> PagedKV:
        """Return the memory of delivered rows, with room for ``n`` in place of those before.

        Raises
        ------
        LinkError
            The sequence was begun with other rows.
        CapacityError
            There is no room.
        """
        delivered = self.memory.delivered if self.memory else None
        assert delivered is not None
        if self.lengths[seq]:
            raise LinkError(
                "the sequence was begun with other rows",
                where=f"sequence {seq}",
                got=f"{self.lengths[seq]} tokens",
                fix="remove it first",
            )
        delivered.rewind(seq, 0)
        delivered.reserve({seq: (0, n)})
        return delivered

    def _keep(self, seq: int, begin: int, steps: list[int]) -> None:
        if self.memory:
            self.memory.keep(seq, begin, steps)
        self.positions.keep(seq, begin, steps)
        self.lengths[seq] = begin + len(steps)
        self.undecided.pop(seq, None)

    def adapt(self, seq: int, chosen: Chosen) -> None:
        """Give an empty sequence adapters, or none.

        Raises
        ------
        BatchError
            No such sequence, or it is not empty.
        """
        seq = self.check(seq)
        if n := self.n_held(seq):
            raise BatchError(
                "adapters are given to an empty sequence",
                where=f"sequence {seq}",
                got=f"{n} rows",
                fix="remove it first",
            )
        self.adapters.set(seq, chosen)

    def fork(self, seq: int, new: int) -> None:
        """Let the empty sequence ``new`` continue from where ``seq`` is.

        Raises
        ------
        BatchError
            No such sequence, one that is not empty, or an undecided tree.
        """
        seq, new = self.check(seq), self.check(new)
        self.check_decided(seq)
        if (n := self.n_held(new)) or seq == new:
            raise BatchError(
                "a fork goes to an empty sequence",
                where=f"sequence {new}",
                got=f"{n} rows",
                fix="remove it first",
            )
        if self.memory:
            self.memory.fork(seq, new)
        self.positions.fork(seq, new)
        self.adapters.fork(seq, new)
        self.lengths[new] = self.lengths[seq]

    def next_position(self, seq: int) -> int:
        """Return the position of a row of text that continues a sequence."""
        return self.positions.following(seq, self.lengths[seq])

    def digest(self, seq: int) -> bytes:
        """Return a hash of what is stored for a sequence: 16 bytes, equal for equal states."""
        length, following = self.lengths[seq], self.next_position(seq)
        stored = self.memory.digest(seq) if self.memory else length.to_bytes(16, "little")
        adapters = self.adapters.of(seq)
        if following == length and not adapters:
            return stored
        further = following.to_bytes(8, "little") + repr(adapters or "").encode()
        return hashlib.blake2b(stored + further, digest_size=16).digest()

    def dump(self, seq: int) -> SequenceRecord:
        """Return what ``load`` needs beside the memory's rows."""
        return SequenceRecord(self.lengths[seq], self.positions.dump(seq), self.adapters.of(seq))

    def load(self, seq: int, record: SequenceRecord, n_ctx: int) -> None:
        """Let an empty sequence, whose rows are in memory already, go on where another one did.

        Raises
        ------
        StateError
            It does not fit the rows, or a context of ``n_ctx`` places.
        """
        parts = (
            [p for p in self.memory.parts if p is not self.memory.delivered] if self.memory else ()
        )
        lengths = {record.length, *(part.length(seq) for part in parts)}
        if len(lengths) > 1 or not 0 <= record.length <= n_ctx:
            raise StateError(
                "lengths that differ, or do not fit the context",
                wanted=f"one in 0..{n_ctx}",
                got=", ".join(map(str, sorted(lengths))),
                fix="make n_ctx larger",
            )
        chosen = self.adapters.find(record.adapters)
        self.positions.load(seq, record.positions, record.length, n_ctx)
        self.adapters.set(seq, chosen)
        self.lengths[seq] = record.length

    def save(self) -> Any:
        """Return what ``restore`` needs to take back the rows of an act."""
        memory = self.memory.save() if self.memory else None
        own = self.positions.save(), self.adapters.save()
        return self.lengths.copy(), self.undecided.copy(), own, memory

    def restore(self, saved: Any) -> None:
        """Hold the rows that there were at the last ``save``."""
        lengths, undecided, (positions, adapters), memory = saved
        if self.memory:
            self.memory.restore(memory)
        self.positions.restore(positions)
        self.adapters.restore(adapters)
        self.lengths[:], self.undecided = lengths, undecided.copy()
