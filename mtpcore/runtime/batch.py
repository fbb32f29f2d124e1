"""Batches: tokens, codes or embedding rows, their places, and the outputs wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from mtpcore._ext._rows import columns_of_chain
from mtpcore.boundary.arguments import Whole31, read
from mtpcore.boundary.arrays import RowsLike, flags, integers, rows_of
from mtpcore.errors import BatchError, spell

__all__ = ["Batch", "Wanted"]

I32 = NDArray[np.int32]
F32 = NDArray[np.float32]
Wanted = Literal["all", "last", "none"] | Sequence[bool] | NDArray[np.bool_]


_RowsBySlot = Annotated[dict[str, Any], Meta(description="a mapping of slot names to rows")]


def _read_slots(slots: Any) -> dict[str, Any]:
    by_name: dict[str, Any] = read(slots, _RowsBySlot, "no rows of slots")
    return by_name


def _check_finite(rows: F32, refusal: str, where: str) -> None:
    """Refuse rows of the host that are not finite; those of a device are looked at there."""
    if isinstance(rows, np.ndarray) and not np.isfinite(rows).all():
        row = int(np.argwhere(~np.isfinite(rows))[0, 0])
        raise BatchError(refusal, where=f"{where}row {row}")


def _filled(n: int, value: int) -> I32:
    """Return int32[n] of one value."""
    column = np.empty(n, np.int32)  # np.full does the same in several calls of Python
    column[:] = value
    return column


class Batch:
    """Rows for ``Context.process``; ``Batch.of`` makes one from tokens.

    It has copies of what it was given, but for rows on a device, which stay there.

    Parameters
    ----------
    tokens : array_like of int, shape (n,), optional
        Token ids; -1 where ``embeddings`` or ``codes`` hold the row.
    embeddings : array_like, DLPack, shape (n, width), optional
        Rows that take the place of looked-up embeddings where ``tokens`` is -1. Those on a device,
        float32 and C-contiguous, stay there until they are processed.
    codes : array_like of int, DLPack, shape (n, n_codebooks), optional
        Of graphs with codebooks: the codes of each row, -1 where it has none. Their embeddings are
        summed, and added to the token's.
    seq : int or array_like of int, shape (n,)
        Sequence of each row.
    pos : int or array_like of int, shape (n,) or (n, axes)
        Places of text: how many rows of its sequence come before each one; one number is the first
        row's, the others of that sequence count on from it. With several axes (multi-axis RoPE):
        positions of any rows, which are stored in the order in which they come. Text after them
        is rotated from ``Context.next_position`` on.
    place : int, optional
        Of each sequence's first row, where positions have several axes; default: where it ends. A
        drafter's first rows may come later than at 0.
    outputs : "all", "last", "none" or array of bool, shape (n,)
        Rows whose logits are wanted; "last" is the last row of each sequence.
    parent : array_like of int, shape (n,), optional
        Draft trees: the row (index in this batch) that this row follows, -1 for the row that
        follows what is stored. The position is the parent's plus one.
    until : array_like of int, shape (n,), optional
        Spans: the place after the last row that each row sees, where that is not itself. Rows of
        an image see each other in models whose graphs say so; others pass over it.
    slots : mapping of str to array_like or DLPack, shape (n, width), optional
        Rows for the slots of a linked graph, where no link delivers them.

    Raises
    ------
    BatchError
        Shapes or numbers that no model could process.
    """

    def __init__(
        self,
        tokens: ArrayLike | None = None,
        *,
        embeddings: RowsLike | None = None,
        codes: RowsLike | None = None,
        seq: ArrayLike = 0,
        pos: ArrayLike = 0,
        place: int | None = None,
        outputs: Wanted = "last",
        parent: ArrayLike | None = None,
        until: ArrayLike | None = None,
        slots: Mapping[str, RowsLike] | None = None,
    ) -> None:
        if tokens is None and embeddings is None and codes is None:
            raise BatchError("a batch has tokens, codes or embedding rows", fix="give one of them")
        self.codes: I32 | None = None
        if codes is not None:
            self.codes = integers(codes, "codes")
            if self.codes.ndim != 2:
                raise BatchError(
                    "codes have two axes", wanted="[n, n_codebooks]", got=self.codes.shape
                )
        self.embeddings: F32 | None = None
        if embeddings is not None:
            self.embeddings = rows_of(embeddings, "embedding rows")
            if self.embeddings.ndim != 2:
                raise BatchError(
                    "embedding rows have two axes", wanted="[n, width]", got=self.embeddings.shape
                )
            _check_finite(self.embeddings, "embedding row is not finite", "")
        self.seq: I32
        self.pos: I32
        self.outputs: NDArray[np.bool_]
        if (chain := columns_of_chain(tokens, seq, pos, outputs)) is not None:
            self.tokens, self.seq, self.pos, self.outputs = chain
        else:
            self.tokens = self._tokens(tokens)
            self.seq = self._column(seq, len(self.tokens), "sequence ids")
            self.pos = self._positions(pos, len(self.tokens))
            self.outputs = self._outputs(outputs, len(self.tokens))
        n = len(self.tokens)
        if self.embeddings is not None and len(self.embeddings) != n:
            raise BatchError("one embedding row a token", wanted=n, got=len(self.embeddings))
        if self.codes is not None and len(self.codes) != n:
            raise BatchError("one row of codes a token", wanted=n, got=len(self.codes))
        what = "a place is a number of rows"
        self.place: int | None = None if place is None else read(place, Whole31, what)
        self.parent = None if parent is None else self._parents(parent, n)
        self.until: I32 | None = None if until is None else self._column(until, n, "ends of spans")
        self.slots: dict[str, F32] = {}
        for name, rows in (_read_slots(slots) if slots is not None else {}).items():
            slot_rows = rows_of(rows, f"rows of slot {name!r}")
            if slot_rows.ndim != 2 or len(slot_rows) != n:
                raise BatchError(
                    "slot rows do not fit the batch",
                    where=f"slot {name!r}",
                    wanted=f"[{n}, width]",
                    got=slot_rows.shape,
                )
            _check_finite(slot_rows, "slot row is not finite", f"slot {name!r}, ")
            self.slots[name] = slot_rows

    @classmethod
    def of(cls, tokens: ArrayLike, seq: int = 0, pos: int = 0, outputs: Wanted = "last") -> Batch:
        """Return a batch of one sequence's tokens at places ``pos``, ``pos + 1``, ..."""
        return cls(tokens, seq=seq, pos=pos, outputs=outputs)

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        seqs = sorted(set(self.seq.tolist()))
        return f"Batch({len(self)} rows of sequences {seqs}, {int(self.outputs.sum())} outputs)"

    def _tokens(self, tokens: ArrayLike | None) -> I32:
        if tokens is None:
            rows = self.codes if self.embeddings is None else self.embeddings
            assert rows is not None
            return _filled(len(rows), -1)
        token_ids = integers(tokens, "tokens")
        if token_ids.ndim != 1:
            raise BatchError("tokens have one axis", wanted="[n]", got=token_ids.shape)
        return token_ids

    @staticmethod
    def _column(values: ArrayLike, n: int, what: str) -> I32:
        if type(values) is int and 0 <= values < 2**31:
            return _filled(n, values)
        column = integers(values, what)
        if column.ndim == 0:
            return _filled(n, int(column))
        if column.shape != (n,):
            raise BatchError(f"one of the {what} a row", wanted=(n,), got=column.shape)
        return column

    def _positions(self, pos: ArrayLike, n: int) -> I32:
        if type(pos) is int and 0 <= pos < 2**31:
            return self._count_on(pos, n)
        positions = integers(pos, "positions")
        if positions.ndim == 0:
            return self._count_on(int(positions), n)
        if positions.ndim > 2 or len(positions) != n:
            raise BatchError(
                "one position a row", wanted=f"[{n}] or [{n}, axes]", got=positions.shape
            )
        return (
            positions[:, 0].copy() if positions.ndim == 2 and positions.shape[1] == 1 else positions
        )

    def _count_on(self, start: int, n: int) -> I32:
        """Return places that begin at ``start`` in every sequence."""
        if start + n >= 2**31:
            raise BatchError("positions fit 32 bits", got=start)
        rows, following = [], dict[int, int]()
        for seq in self.seq.tolist():
            rows.append(following.get(seq, start))
            following[seq] = rows[-1] + 1
        return integers(rows, "positions")

    def _parents(self, parent: ArrayLike, n: int) -> I32:
        parents = self._column(parent, n, "parents")
        rows = np.arange(n)
        bad = np.flatnonzero((parents < -1) | (parents >= rows))
        if len(bad):
            raise BatchError(
                "a parent is an earlier row of the batch, or -1",
                where=f"row {bad[0]}",
                got=int(parents[bad[0]]),
            )
        inner = parents >= 0
        bad = np.flatnonzero(inner & (self.seq[parents] != self.seq))
        if len(bad):
            raise BatchError(
                "a parent is a row of the same sequence",
                where=f"row {bad[0]}",
                got=int(parents[bad[0]]),
            )
        return parents

    def _outputs(self, outputs: Wanted, n: int) -> NDArray[np.bool_]:
        if isinstance(outputs, str):
            if outputs not in ("all", "last", "none"):
                raise BatchError(
                    "unknown outputs", wanted="all, last, none or bools", got=spell(outputs)
                )
            if outputs != "last":
                return np.full(n, outputs == "all")
            wanted = np.zeros(n, bool)
            for row in dict(zip(self.seq.tolist(), range(n), strict=True)).values():
                wanted[row] = True
            return wanted
        return flags(outputs, n, "outputs")
