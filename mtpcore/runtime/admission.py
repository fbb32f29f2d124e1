"""The border between callers and plans: every row of a batch is checked here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._rows import place_rows
from mtpcore.backends.base import Choices, Rows
from mtpcore.boundary.arguments import read_below
from mtpcore.boundary.arrays import integers
from mtpcore.errors import BatchError, LinkError
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.fused_sampling import choose_rows, read_choices

if TYPE_CHECKING:
    from mtpcore.runtime.context import Context

__all__ = [
    "Admitted",
    "RowSource",
    "admit",
    "check_path",
    "check_rewind",
    "run_parts",
    "undecided_tree",
]

I32 = NDArray[np.int32]
Ranges = dict[int, tuple[int, int]]
Groups = dict[int, NDArray[np.intp]]
Placed = tuple[I32, Ranges, Groups, I32]
"""Place of each row, places and rows of each sequence, rows whose outputs are wanted."""
Admitted = tuple[Rows, Ranges, Groups]
"""Checked rows, the places that they take, and whose they are."""


class RowSource(Protocol):
    """Gives a slot its rows."""

    def __call__(self, seq: I32, place: I32) -> NDArray[np.float32]:
        """Return float32[n, width] for sequences and places int32[n]."""

    def sound_until(self, seq: int, places: range) -> int:
        """Return the first of these places whose row is not finite, or their end."""


def admit(context: Context, batch: Batch, choices: Choices | None = None) -> Admitted:
    """Check a batch against a context; return its rows, the places they take, and whose they are.

    Raises
    ------
    BatchError, LinkError, SamplingError
        Naming the first row that does not fit.
    """
    if not isinstance(batch, Batch):
        raise BatchError(
            "process() takes a Batch",
            got=type(batch).__name__,
            fix="make one of the tokens: Batch.of(tokens, seq=0, pos=0)",
        )
    if not len(batch):
        raise BatchError("an empty batch", fix="leave the call out")
    place, ranges, groups, outputs = _chains(context, batch) or _look_closer(context, batch)
    if choices is not None:
        choices = read_choices(choices, len(outputs))
    rows = Rows(
        tokens=batch.tokens,
        positions=_positions(context, batch),
        seq=batch.seq,
        place=place,
        outputs=outputs,
        parent=batch.parent,
        embeddings=batch.embeddings,
        slots=_slots(context, batch, place),
        choices=choices,
    )
    return rows, ranges, groups


def _chains(context: Context, batch: Batch) -> Placed | None:
    """Place rows that are tokens, one after the other; None where there is anything else."""
    if batch.pos.ndim != 1 or batch.parent is not None or batch.embeddings is not None:
        return None
    if context.undecided:
        return None
    return place_rows(
        batch.tokens,
        batch.seq,
        batch.pos,
        batch.outputs,
        context.lengths,
        context.model.hparams.n_vocab,
        context.n_ctx,
        context.drafter is not None,
    )


def _look_closer(context: Context, batch: Batch) -> Placed:
    """Place rows of any kind; raise for the first that does not fit."""
    _check_seqs(context, batch)
    place, ranges, groups = _places(context, batch)
    _check_positions(context, batch)
    _check_tokens(context, batch)
    return place, ranges, groups, np.flatnonzero(batch.outputs).astype(np.int32)


def undecided_tree(seq: int) -> BatchError:
    """Return the error of whoever goes on before one path was chosen."""
    return BatchError("a draft tree is undecided", where=f"sequence {seq}", fix="call keep() first")


def check_rewind(context: Context, seq: int, length: int) -> tuple[int, int]:
    """Return both; raise BatchError or CapacityError where a context cannot go back to a place."""
    seq = context.check_seq(seq)
    end, where = context.lengths[seq] + 1, f"sequence {seq}"
    length = read_below(length, end, "rewinds to a place that is not there", where=where)
    if length > context.undecided.get(seq, (length, length))[0]:
        raise undecided_tree(seq)
    if context.memory:
        context.memory.check_rewind(seq, length)
    return seq, length


def check_path(context: Context, seq: int, path: Sequence[int]) -> tuple[int, int, list[int]]:
    """Return the sequence, where its draft tree begins, and a path through it.

    Raises
    ------
    BatchError
        There is no tree, or no such path.
    """
    seq = context.check_seq(seq)
    if seq not in context.undecided:
        raise BatchError("no draft tree to choose from", where=f"sequence {seq}")
    begin, end = context.undecided[seq]
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
    return seq, begin, steps


def run_parts(context: Context, rows: Rows, ranges: Ranges) -> dict[str, NDArray[Any]]:
    """Run all rows, in as many parts as are needed; return read-only arrays by name.

    With choices one of them is ``chosen``, and logits are those of the outputs without a sampler;
    of all where somebody watches.

    Raises
    ------
    BatchError, CapacityError
        A draft tree is longer than ``n_batch``, or there is no room.
    """
    choices, keeps_all = rows.choices, bool(context.watchers)  # who may look at the logits
    if choices is not None and keeps_all:
        rows = msgspec.structs.replace(rows, choices=None)
    parts = []
    for part, places in _split(rows, ranges, context.n_batch):
        if context.memory:
            context.memory.reserve(places)
        parts.append(context.plan.run(part, context.memory))
    arrays = parts[0]
    if len(parts) > 1:
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in arrays}
    if choices is not None and "chosen" not in arrays:
        arrays["chosen"] = choose_rows(choices, arrays)
        if not keeps_all:
            arrays["logits"] = arrays["logits"][arrays["chosen"] < 0]
    if choices and not keeps_all and choices.samplers and None not in choices.samplers:
        arrays.pop("logits", None)
    for array in arrays.values():
        array.setflags(write=False)
    return arrays


def _split(rows: Rows, ranges: Ranges, n_batch: int) -> list[tuple[Rows, Ranges]]:
    """Return parts of at most ``n_batch`` rows, each with the places that it takes.

    A chain may be cut anywhere, for what went before is stored by then. The rows of a sequence that
    branches see each other and stay together.

    Raises
    ------
    BatchError
        A draft tree is longer than ``n_batch``.
    """
    n = len(rows.tokens)
    if n <= n_batch:
        return [(rows, ranges)]
    joined = np.zeros(n + 1, bool)  # to the row before
    for seq in ranges if rows.parent is not None else ():
        mine = np.flatnonzero(rows.seq == seq)
        assert rows.parent is not None
        if (rows.parent[mine[1:]] != mine[:-1]).any():
            joined[mine[0] + 1 : mine[-1] + 1] = True
    free = np.flatnonzero(~joined)
    parts, begin = [], 0
    while begin < n:
        end = int(free[free <= begin + n_batch][-1])
        if end == begin:
            raise BatchError(
                "a draft tree runs in one piece",
                where=f"sequence {rows.seq[begin]}",
                wanted=f"at most {n_batch}",
                got=f"{int((rows.seq == rows.seq[begin]).sum())} rows",
                fix="make n_batch larger",
            )
        parts.append(_part(rows, begin, end))
        begin = end
    return parts


def _part(rows: Rows, begin: int, end: int) -> tuple[Rows, Ranges]:
    first, stop = np.searchsorted(rows.outputs, (begin, end)).tolist()
    parent, choices = rows.parent, rows.choices
    if parent is not None:  # a parent in an earlier part is the newest row stored
        parent = np.maximum(parent[begin:end] - np.int32(begin), np.int32(-1))
    part = Rows(
        tokens=rows.tokens[begin:end],
        positions=rows.positions[begin:end],
        seq=rows.seq[begin:end],
        place=rows.place[begin:end],
        outputs=(rows.outputs[first:stop] - begin).astype(np.int32),
        parent=parent,
        embeddings=None if rows.embeddings is None else rows.embeddings[begin:end],
        slots={name: slot[begin:end] for name, slot in rows.slots.items()},
        choices=choices and choices.part(first, stop),
    )
    taken = {}
    for seq in dict.fromkeys(part.seq.tolist()):
        places = part.place[part.seq == seq]
        taken[seq] = (int(places[0]), int(places[-1]) + 1)
    return part, taken


def _check_seqs(context: Context, batch: Batch) -> None:
    bad = np.flatnonzero((batch.seq < 0) | (batch.seq >= context.n_seq_max))
    if len(bad):
        raise BatchError(
            "no such sequence",
            where=f"row {bad[0]}",
            wanted=f"0..{context.n_seq_max - 1}",
            got=int(batch.seq[bad[0]]),
            fix="make n_seq_max larger",
        )


def _check_tokens(context: Context, batch: Batch) -> None:
    n_vocab = context.model.hparams.n_vocab
    low = 0 if batch.embeddings is None else -1
    bad = np.flatnonzero((batch.tokens < low) | (batch.tokens >= n_vocab))
    if len(bad):
        raise BatchError(
            "no such token",
            where=f"row {bad[0]}",
            wanted=f"{low}..{n_vocab - 1}",
            got=int(batch.tokens[bad[0]]),
        )
    if batch.embeddings is None:
        return
    inputs = context.program.inputs
    if "embeddings" not in inputs:
        raise BatchError("this graph takes no embedding rows", where=context.program.name)
    width = context.program.values[inputs["embeddings"]].shape[1]
    if batch.embeddings.shape[1] != width:
        raise BatchError(
            "embedding rows have another width", wanted=width, got=batch.embeddings.shape[1]
        )


def _places(context: Context, batch: Batch) -> tuple[I32, Ranges, Groups]:
    place = np.empty(len(batch), np.int32)
    ranges: Ranges = {}
    groups: Groups = {}
    for seq in dict.fromkeys(batch.seq.tolist()):
        mine = groups[seq] = np.flatnonzero(batch.seq == seq)
        length = context.length(seq)
        if seq in context.undecided:
            raise undecided_tree(seq)
        begin = length
        # A drafter's first entry may be that of the second token; everything else starts at 0.
        if length == 0 and batch.pos.ndim == 1 and context.drafter is not None:
            begin = int(batch.pos[mine[0]])
        place[mine] = begin + np.arange(len(mine))
        ranges[seq] = (begin, begin + len(mine))
        if batch.pos.ndim == 1:
            _check_chain(batch, mine, place, begin, seq)
    return place, ranges, groups


def _check_chain(batch: Batch, mine: NDArray[np.intp], place: I32, begin: int, seq: int) -> None:
    wanted = place
    if batch.parent is not None:
        wanted = place.copy()
        for row in mine.tolist():
            parent = int(batch.parent[row])
            wanted[row] = begin if parent < 0 else wanted[parent] + 1
    bad = mine[(batch.pos[mine] != wanted[mine]) | (batch.pos[mine] < 0)]
    if len(bad):
        raise BatchError(
            "position does not continue the sequence",
            where=f"row {bad[0]}, sequence {seq}",
            wanted=max(int(wanted[bad[0]]), 0),
            got=int(batch.pos[bad[0]]),
        )


def _check_positions(context: Context, batch: Batch) -> None:
    axes = context.n_axes
    if batch.pos.ndim == 2 and batch.pos.shape[1] != axes:
        raise BatchError(
            "positions have another number of axes", wanted=axes, got=batch.pos.shape[1]
        )
    bad = np.argwhere((batch.pos < 0) | (batch.pos >= context.n_ctx))
    if len(bad):
        raise BatchError(
            "position lies outside the context",
            where=f"row {bad[0][0]}",
            wanted=f"0..{context.n_ctx - 1}",
            got=int(batch.pos[tuple(bad[0])]),
            fix="make n_ctx larger",
        )


def _positions(context: Context, batch: Batch) -> I32:
    """Return int32[n, axes]."""
    if batch.pos.ndim == 2:
        return batch.pos
    pos, axes = batch.pos[:, None], context.n_axes
    return pos if axes == 1 else np.ascontiguousarray(np.repeat(pos, axes, axis=1))


def _slots(context: Context, batch: Batch, place: I32) -> dict[str, NDArray[np.float32]]:
    found: dict[str, NDArray[np.float32]] = {}
    if not context.slots and not batch.slots:
        return found
    for slot, width in context.slots.items():
        if slot in batch.slots:
            rows = batch.slots[slot]
        elif slot in context.sources:
            rows = context.sources[slot](batch.seq, place)
        else:
            raise LinkError(
                "rows of a slot are missing",
                where=f"slot {slot!r}, sequence {batch.seq[0]}, position {place[0]}",
                fix="link a context to this slot, feed() rows, or give Batch(slots=)",
            )
        if rows.shape != (len(batch), width):
            raise BatchError(
                "slot rows do not fit",
                where=f"slot {slot!r}",
                wanted=(len(batch), width),
                got=rows.shape,
            )
        found[slot] = rows
    if unknown := batch.slots.keys() - found.keys():
        raise BatchError(
            "slots that the graph does not have",
            where=context.program.name,
            wanted=", ".join(found) or "none",
            got=", ".join(sorted(unknown)),
        )
    return found
