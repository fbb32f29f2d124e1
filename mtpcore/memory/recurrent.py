"""Memory of recurrent layers: bases, and logs of the rows after them.

A recurrent state is overwritten by every row, so going back needs more than cutting a table. A
*slot* holds a base, the states of all layers at some place, and a log of the rows after it. A
sequence holds slots in ascending order of their bases. A pass goes on from the newest: it reads the
base, replays the rows of the log, and logs its own there, or in another slot that it opens: then it
writes the base of that one on its way. To go back is to cut a log, or to return to an earlier slot.
A sequence always has its two newest slots; those before them are *checkpoints*, and one rule for
all sequences says which of them stay (``RecurrentMemory._thin``).

Nothing that anybody holds is ever written a second time: a row is logged where no sequence, and
nothing that can be restored, has one. So a sequence is a tuple of numbers. ``save`` and ``fork``
copy it, ``restore`` puts it back, ``keep`` leaves rows out of it, and sequences that share a slot
need not count who else does.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtpcore.errors import CapacityError, StateError
from mtpcore.memory.base import LOG, StateStore

__all__ = ["CHECKPOINTS", "NO_SLOT", "StatePass", "RecurrentMemory", "checkpoints_in", "slots_for"]

CHECKPOINTS: Final = 6
"""Checkpoints that each sequence keeps if nothing limits their bytes.

Enough that one near the end of a long prompt is still there when the text after it has grown.
"""

_MOST: Final = 64
"""Checkpoints of each sequence on average, however many bytes they may take.

Every pass looks through all of them; with this many they are close enough to each other.
"""

_DUMPED: Final = 2
"""Newest slots that are saved: what the rows of the newest pass can be taken back to."""

_SEQUENCE, _HELD = struct.Struct("<2Q"), struct.Struct("<3Q")
"""Of a sequence its first place and its slots; of a slot the base's place, rows, ``is_prompt``."""

_WORKING: Final = 4  # the two newest of a sequence, and those that an act can be restored to

_REPLAYED: Final = 1
"""Rows of a log after which a pass still goes on in it, replaying them, and opens no slot.

A row costs about half of what it takes to write a base. Passes of one row that open a slot where
more than r rows are logged cost (r + 2) / 4 + 1 / (r + 1) bases each, the least with r = 1; passes
of more rows log more than that at once. A further pass of the same act goes on in the slot that the
one before it logged in as long as there is room, so that what an act adds can be taken back.
"""

NO_SLOT: Final = -1
"""In place of a slot: the state before the first row, zeros; or nothing is written."""


def checkpoints_in(n_bytes: int | None, slot_bytes: int, n_seq: int) -> int | None:
    """Return how many checkpoints all sequences keep together in ``n_bytes``; None: any."""
    return None if n_bytes is None else min(n_bytes // slot_bytes, n_seq * _MOST)


def slots_for(n_seq: int, n_checkpoints: int | None = None) -> int:
    """Return how many slots memory of ``n_seq`` sequences has, with their checkpoints.

    ``n_checkpoints`` counts those of all sequences; None: ``CHECKPOINTS`` of each.
    """
    return n_seq * _WORKING + (n_seq * CHECKPOINTS if n_checkpoints is None else n_checkpoints)


class HeldSlot(NamedTuple):
    """A slot as a sequence holds it: the place of its base, and the rows of its log, in order.

    ``is_prompt`` says that a pass of more rows than a log has opened it: prompts are such passes.
    """

    slot: int
    place: int
    rows: tuple[int, ...]
    is_prompt: bool = False

    @property
    def end(self) -> int:
        """The place after the newest row."""
        return self.place + len(self.rows)


class Chain(NamedTuple):
    """A sequence: the place of its first row, and the slots that it holds, oldest first."""

    start: int
    held: tuple[HeldSlot, ...]

    @property
    def end(self) -> int:
        """The place after the newest row."""
        return self.held[-1].end if self.held else 0


_EMPTY = Chain(0, ())


class StatePass(NamedTuple):
    """How the rows of one sequence in a batch go on from its memory.

    ``rows`` are theirs in the batch, and ``above[i]`` says after which of them row i comes; -1:
    after what is stored. That state is the base of slot ``read`` (zeros, where it is ``NO_SLOT``)
    and its rows ``replayed``. Before row ``base_at``, or after the last one, the state is written
    as the base of slot ``written``, unless that is ``NO_SLOT``. Row i is logged as row
    ``logged[i]`` of slot ``log``; -1: it is not.
    """

    rows: list[int]
    above: list[int]
    read: int
    replayed: tuple[int, ...]
    written: int
    base_at: int
    log: int
    logged: tuple[int, ...]


class RecurrentMemory:
    """States of recurrent layers; the part of ``mtpcore.memory.base.Memory`` that they need.

    Parameters
    ----------
    store : StateStore
        Holds states and logged rows in ``slots_for(n_seq, n_checkpoints)`` slots; made by the
        backend that reads them.
    n_seq : int
    n_checkpoints : int, optional
        The most slots that are checkpoints, of all sequences together, at any time; None:
        ``CHECKPOINTS`` of each sequence.

    Attributes
    ----------
    table : int32[n_seq, 6 + LOG]
        What ``reserve`` decided for the rows of each sequence: the slot that is read (``NO_SLOT``:
        zeros), the place of its base, the slot that is opened (``NO_SLOT``: none), the place of its
        base, the places [begin, end) that are reserved, and the rows of the log of the slot that is
        read, of the places after its base. Compiled code reads it in place.
    """

    def __init__(self, store: StateStore, n_seq: int, n_checkpoints: int | None = None) -> None:
        self.store, self.n_slots = store, slots_for(n_seq, n_checkpoints)
        self.table: NDArray[np.int32] = np.full((n_seq, 6 + LOG), NO_SLOT, np.int32)
        self._shares = (  # how many checkpoints which sequences keep together
            [(range(seq, seq + 1), CHECKPOINTS) for seq in range(n_seq)]
            if n_checkpoints is None
            else [(range(n_seq), n_checkpoints)]
        )
        self._chains = [_EMPTY] * n_seq
        self._saved = [_EMPTY] * n_seq
        self._paths: dict[int, tuple[int, tuple[int, ...], HeldSlot]] = {}  # kept since then

    @property
    def longest_rewind(self) -> int:
        """The rows of a log but one: those of the newest pass that are drafts."""
        return LOG - 1

    def allow_rewind(self, n: int) -> None:
        """Accept as many rows as a log has after a pass's first."""
        if n > self.longest_rewind:
            raise CapacityError(
                "recurrent layers cannot take back so many rows",
                wanted=f"at most {self.longest_rewind}",
                got=n,
                fix="make drafts shorter",
            )

    def first(self, seq: int) -> int:
        """Return the place of the first row; 0 where there is none."""
        return self._chains[seq].start

    def length(self, seq: int) -> int:
        """Return the place after the newest row."""
        return self._chains[seq].end

    # Rows that come

    def reserve(self, rows: dict[int, tuple[int, int]]) -> None:
        """Decide where rows ``[begin, end)`` of each sequence are logged, and open slots for them.

        Never refuses: checkpoints are given up for slots that are opened.
        """
        logged, opening = self._logged(), []
        for seq, (begin, end) in rows.items():
            if begin < end and not self._log_after(seq, begin, end, logged):
                opening.append(seq)
        if opening:
            self._thin(opening)
            free = self._free()
            for seq in opening:
                self._open(seq, *rows[seq], next(free))

    def give_back(self, rows: dict[int, tuple[int, int]]) -> None:
        """Forget rows that were reserved, and slots that were opened for them.

        Whether they have run does not matter: nobody reads the base of such a slot, which may never
        have been written. Checkpoints that were given up for it do not come back.
        """
        for seq, (begin, end) in rows.items():
            if begin == end:
                continue
            chain, opened = self._chains[seq], int(self.table[seq, 2])
            if opened == NO_SLOT or not chain.held or chain.held[-1].slot != opened:
                self.rewind(seq, begin)
            else:
                held = chain.held[:-1]
                self._chains[seq] = chain._replace(held=held) if held else _EMPTY
        self._thin()

    def _log_after(self, seq: int, begin: int, end: int, logged: dict[int, set[int]]) -> bool:
        """Log rows after those of the newest slot, and say so; False: another is to be opened."""
        held = self._chains[seq].held
        is_new = held[-1:] != self._saved[seq].held[-1:]
        if not held or (len(held[-1].rows) > _REPLAYED and not is_new):
            return False
        after = _rows_after(held[-1], end - begin, logged[held[-1].slot])
        if not after:
            return False
        newest = held[-1]._replace(rows=(*held[-1].rows, *after))
        self._chains[seq] = self._chains[seq]._replace(held=(*held[:-1], newest))
        logged[newest.slot].update(after)
        self._tell(seq, newest, NO_SLOT, begin, (begin, end))
        return True

    def _open(self, seq: int, begin: int, end: int, slot: int) -> None:
        """Log rows in a slot that nobody holds."""
        chain, base = self._chains[seq], max(begin, end - LOG)
        held = HeldSlot(slot, base, tuple(range(end - base)), is_prompt=base > begin)
        read = chain.held[-1] if chain.held else HeldSlot(NO_SLOT, begin, ())
        self._chains[seq] = Chain(chain.start if chain.held else begin, (*chain.held, held))
        self._tell(seq, read, slot, base, (begin, end))

    def _tell(
        self, seq: int, read: HeldSlot, opened: int, base: int, rows: tuple[int, int]
    ) -> None:
        """Write into the table which slot is read, which is opened, and for which rows."""
        entry = self.table[seq]
        entry[:6] = read.slot, read.place, opened, base, *rows
        entry[6 : 6 + len(read.rows)] = read.rows

    def _logged(self) -> dict[int, set[int]]:
        """Return the rows that are logged in each slot which anybody holds."""
        logged: dict[int, set[int]] = {}
        for chain in (*self._chains, *self._saved):
            for held in chain.held:
                logged.setdefault(held.slot, set()).update(held.rows)
        return logged

    def _free(self) -> Iterator[int]:
        """Yield the slots that nobody holds now."""
        held = _slots((*self._chains, *self._saved))
        return (slot for slot in range(self.n_slots) if slot not in held)

    # Checkpoints

    def _thin(self, opening: Collection[int] = ()) -> None:
        """Give up checkpoints until there are few enough, those of prompts last.

        Of equals, of all sequences together, those go whose neighbours are closest to each other
        for their age. The slots before the newest of sequences that are ``opening`` one
        count as checkpoints already.
        """
        needed = self._needed(opening)
        for seqs, most in self._shares:
            found = _slots(self._chains_of(seqs)) - needed
            if len(found) > most:
                losses = self._losses(seqs)
                found_by_loss = sorted(found, key=lambda slot: (losses[slot], slot))
                self._give_up(set(found_by_loss[: len(found) - most]), seqs)

    def _needed(self, opening: Collection[int]) -> set[int]:
        """Return the slots that are no checkpoints.

        A sequence goes on in its newest slot; the one before it is read by a pass that has opened
        the newest, and takes back its rows; and an act goes back to what was held before it.
        """
        needed = {held.slot for chain in self._saved for held in chain.held[-2:]}
        for seq, chain in enumerate(self._chains):
            needed.update(held.slot for held in chain.held[-1 if seq in opening else -2 :])
        return needed

    def _chains_of(self, seqs: Iterable[int]) -> list[Chain]:
        """Return what these sequences hold, and what they can be restored to."""
        return [chains[seq] for chains in (self._chains, self._saved) for seq in seqs]

    def _losses(self, seqs: Iterable[int]) -> dict[int, tuple[bool, float]]:
        """Return by slot what these sequences lose without it, the most that one of them does."""
        losses: dict[int, tuple[bool, float]] = {}
        for chain in self._chains_of(seqs):
            places = [0, *(held.place for held in chain.held), chain.end]
            for i, held in enumerate(chain.held):
                gap, age = places[i + 2] - places[i], places[-1] - places[i]
                loss = held.is_prompt, gap / (age + 1)
                losses[held.slot] = max(losses.get(held.slot, loss), loss)
        return losses

    def _give_up(self, slots: set[int], seqs: Iterable[int]) -> None:
        """Let none of these sequences hold these slots any more, nor get them back."""
        for chains in (self._chains, self._saved):
            for seq in seqs:
                kept = tuple(held for held in chains[seq].held if held.slot not in slots)
                chains[seq] = chains[seq]._replace(held=kept)

    # Rows that run

    def passes(
        self,
        seq: NDArray[np.int32],
        place: NDArray[np.int32],
        parent: NDArray[np.int32] | None = None,
    ) -> list[StatePass]:
        """Return for each sequence of a batch how its rows go on from what ``reserve`` decided.

        Parameters
        ----------
        seq, place, parent : int32[n]
            Of the batch's rows, as in ``mtpcore.backends.base.CheckedBatch``.

        Raises
        ------
        CapacityError
            The rows were not reserved, follow rows whose state was not kept, or are a draft tree
            of more rows than a log has.
        """
        return [
            self._pass(s, np.flatnonzero(seq == s).tolist(), place, parent)
            for s in dict.fromkeys(seq.tolist())
        ]

    def _pass(
        self,
        seq: int,
        rows: list[int],
        place: NDArray[np.int32],
        parent: NDArray[np.int32] | None,
    ) -> StatePass:
        read, read_base, opened, base, begin, end = self.table[seq, :6].tolist()
        log = tuple(self.table[seq, 6:].tolist())
        first, stop = int(place[rows[0]]), int(place[rows[-1]]) + 1
        goes_on = begin < first and (opened == NO_SLOT or base <= first)
        if not (first == begin or goes_on) or stop > end:
            raise CapacityError(
                "rows without a state before them",
                where=f"sequence {seq}",
                wanted=f"places {begin}..{end - 1}",
                got=f"{first}..{stop - 1}",
            )
        above = list(range(-1, len(rows) - 1))
        if parent is not None:
            index = {row: i for i, row in enumerate(rows)}
            above = [index.get(int(parent[row]), -1) for row in rows]
        if opened == NO_SLOT:
            n = first - read_base
            return StatePass(rows, above, read, log[:n], NO_SLOT, 0, read, log[n : n + len(rows)])
        logged = tuple(max(at, -1) for at in range(first - base, stop - base))
        if goes_on:
            replayed = tuple(range(first - base))
            return StatePass(rows, above, opened, replayed, NO_SLOT, 0, opened, logged)
        if base > first and above != list(range(-1, len(rows) - 1)):
            raise CapacityError(
                "a draft tree is longer than the log of recurrent layers",
                where=f"sequence {seq}",
                wanted=f"at most {LOG} rows",
                got=len(rows),
                fix="make drafts shorter",
            )
        replayed = log[: first - read_base]
        return StatePass(rows, above, read, replayed, opened, base - first, opened, logged)

    # Rows that go

    def nearest(self, seq: int, length: int) -> int:
        """Return the greatest place, at most ``length``, that a sequence can go back to.

        It is the place of the first row where no state before ``length`` is left: nothing of the
        sequence is held then.
        """
        chain = self._chains[seq]
        reached = [min(held.end, length) for held in chain.held if held.place <= length]
        return max(reached, default=chain.start)

    def check_rewind(self, seq: int, length: int) -> None:
        """Refuse a place of which no state is kept."""
        chain = self._chains[seq]
        nearest = self.nearest(seq, length)
        if chain.start < length < chain.end and nearest < length:
            raise CapacityError(
                "the state of recurrent layers at this place is gone",
                where=f"sequence {seq}",
                wanted=f"place {nearest}, the nearest before it"
                if nearest > chain.start
                else "the whole sequence",
                got=length,
                fix="go back there and process the tokens after it again",
            )

    def rewind(self, seq: int, length: int) -> None:
        """Forget the rows from place ``length`` on."""
        self.check_rewind(seq, length)
        chain = self._chains[seq]
        if length <= chain.start:
            self._chains[seq] = _EMPTY
        elif length < chain.end:
            self._chains[seq] = chain._replace(held=_cut(chain.held, length))
        if len(self._chains[seq].held) < len(chain.held):
            self._thin()  # others may hold as checkpoints what this one has let go

    def keep(self, seq: int, begin: int, path: list[int]) -> None:
        """Keep of the rows after ``begin`` those of a path, in this order, and no others."""
        if sorted(set(path)) != path or (path and path[0] < 0):
            raise CapacityError("a path ascends", where=f"sequence {seq}", got=path)
        chain, steps = self._chains[seq], tuple(path)
        if chain.held and (begin, steps, chain.held[-1]) == self._paths.get(seq):
            return  # it was cut off after that
        if steps == tuple(range(len(steps))):
            self.rewind(seq, begin + len(steps))
            return
        newest = chain.held[-1]
        n = begin - newest.place
        rows = (*newest.rows[:n], *(newest.rows[n + step] for step in steps))
        kept = newest._replace(rows=rows)
        self._paths[seq] = begin, steps, kept
        self._chains[seq] = chain._replace(held=(*chain.held[:-1], kept))

    # Sequences

    def fork(self, seq: int, new: int) -> None:
        """Let ``new`` hold what ``seq`` holds."""
        self._chains[new] = self._chains[seq]

    def save(self) -> list[Chain]:
        """Return what ``restore`` needs; what it names is not written from now on."""
        self._paths = {}
        self._saved = self._chains.copy()
        self._thin()
        return self._saved

    def restore(self, saved: list[Chain]) -> None:
        """Hold what was held at the last ``save``, but checkpoints that were given up since."""
        self._paths = {}
        self._chains = saved.copy()

    def snapshot(self, seq: int) -> bytes:
        """Return nothing: what is held is never written over."""
        return b""

    def refill(self, seq: int, rows: bytes) -> None:
        """Do nothing; see ``snapshot``."""

    def most_bytes(self, n_places: int) -> int:
        """Return how many bytes ``dump`` gives at most; they do not grow with the places."""
        slot_bytes = _HELD.size + self.store.base_bytes + LOG * self.store.row_bytes
        return _SEQUENCE.size + _DUMPED * slot_bytes

    def dump(self, seq: int) -> Iterator[bytes]:
        """Yield the newest slots, as far as the sequence holds them; checkpoints are left out."""
        chain = self._chains[seq]
        newest = chain.held[-_DUMPED:]
        yield _SEQUENCE.pack(chain.start, len(newest))
        for held in newest:
            yield _HELD.pack(held.place, len(held.rows), held.is_prompt)
            yield self.store.read_base(held.slot)
            for row in held.rows:
                yield self.store.read_row(held.slot, row)

    def load(self, seq: int, data: memoryview) -> None:
        """Let an empty sequence hold slots that ``dump`` gave."""
        if len(data) < _SEQUENCE.size:
            raise StateError("the states of recurrent layers are cut short")
        start, n_slots = _SEQUENCE.unpack(data[: _SEQUENCE.size])
        data, n_base, n_row = data[_SEQUENCE.size :], self.store.base_bytes, self.store.row_bytes
        if n_slots > _DUMPED or (start and not n_slots):
            raise StateError("impossible states of recurrent layers", got=f"{n_slots} slots")
        least, free = start, self._free()
        for _ in range(n_slots):
            place, n_rows, is_prompt = _read_held(data, least)
            data, n_bytes = data[_HELD.size :], n_base + n_rows * n_row
            if len(data) < n_bytes:
                raise StateError("the states of recurrent layers are cut short")
            held = HeldSlot(next(free), place, tuple(range(n_rows)), is_prompt)
            self._chains[seq] = Chain(start, (*self._chains[seq].held, held))
            self.store.write_base(held.slot, data[:n_base])
            for row in held.rows:
                begin = n_base + row * n_row
                self.store.write_row(held.slot, row, data[begin : begin + n_row])
            data, least = data[n_bytes:], held.end
        if len(data):
            raise StateError("states of recurrent layers with further bytes", got=len(data))

    def bytes_of(self, seqs: Collection[int]) -> int:
        """Return the bytes of the slots that these sequences hold, and no other."""
        own = _slots(self._chains[seq] for seq in seqs)
        others = _slots(chain for seq, chain in enumerate(self._chains) if seq not in seqs)
        return len(own - others) * (self.store.base_bytes + LOG * self.store.row_bytes)

    def digest(self, seq: int) -> bytes:
        """Hash first place, length and the states after the newest row."""
        chain = self._chains[seq]
        hashed = hashlib.blake2b(f"{chain.start} {chain.end} ".encode(), digest_size=16)
        if chain.held:
            hashed.update(self.store.settle(chain.held[-1].slot, chain.held[-1].rows))
        return hashed.digest()


def _slots(chains: Iterable[Chain]) -> set[int]:
    """Return the slots that sequences hold."""
    return {held.slot for chain in chains for held in chain.held}


def _read_held(data: memoryview, least: int) -> tuple[int, int, bool]:
    """Return place, number of rows and ``is_prompt`` of a slot whose base is at ``least`` or later.

    Raises
    ------
    StateError
        No slot is like that.
    """
    if len(data) < _HELD.size:
        raise StateError("the states of recurrent layers are cut short")
    place, n_rows, is_prompt = _HELD.unpack(data[: _HELD.size])
    if place < least or n_rows > LOG or is_prompt > 1:
        raise StateError(
            "impossible states of recurrent layers",
            wanted=f"a place from {least} on, and at most {LOG} rows",
            got=f"place {place} and {n_rows} rows",
        )
    return place, n_rows, bool(is_prompt)


def _rows_after(newest: HeldSlot, n: int, taken: set[int]) -> tuple[int, ...]:
    """Return rows of the newest slot's log for n more; none where there is no room for them."""
    free = [row for row in range(LOG) if row not in taken]
    fits = len(newest.rows) + n <= LOG and n <= len(free)
    return tuple(free[:n]) if fits else ()


def _cut(held: tuple[HeldSlot, ...], length: int) -> tuple[HeldSlot, ...]:
    """Return slots up to a place that the newest one left reaches."""
    kept = [one for one in held if one.place <= length]
    newest = kept[-1]
    return (*kept[:-1], newest._replace(rows=newest.rows[: length - newest.place]))
