"""Checks of batches: every row is checked here before a plan runs it.

A *place* is where a row is stored, a *position* is what it is rotated by. For text alone they are
the same number; ``Batch.pos`` has one or the other:

===========  =============================  =====================  =================================
rows         ``Batch.pos``                  place                  position
===========  =============================  =====================  =================================
text         [n], the places                on from the sequence   the place, shifted after an image
draft tree   [n], the parent's and one      on from the sequence   ``pos``, shifted after an image
image        [n, axes], the positions       on from the sequence   ``pos``
===========  =============================  =====================  =================================
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._rows import place_rows
from mtpcore.backends.base import CheckedBatch, FusedSampling
from mtpcore.errors import BatchError, LinkError
from mtpcore.graph import Program
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.fused_sampling import read_fused_sampling
from mtpcore.runtime.sequences import Sequences

__all__ = ["Admission", "Admitted", "Ranges", "SlotSource"]

I32 = NDArray[np.int32]
Ranges = dict[int, tuple[int, int]]
"""Places begin..end of some sequences."""
RowsOfSeq = dict[int, NDArray[np.intp]]
"""The batch's rows of each sequence."""
Placed = tuple[I32, Ranges, RowsOfSeq, I32]
"""Place of each row, places and rows of each sequence, rows whose outputs are wanted."""
Admitted = tuple[CheckedBatch, Ranges, RowsOfSeq]
"""Checked rows, the places that they take, and whose they are."""


class SlotSource(Protocol):
    """Gives a slot its rows."""

    def __call__(self, seq: I32, place: I32) -> NDArray[np.float32]:
        """Return float32[n, width] for sequences and places int32[n]."""

    def finite_until(self, seq: int, places: range) -> int:
        """Return the first of these places whose row is not finite, or their end."""


class Admission:
    """Checks batches for one graph and fetches the rows of its slots.

    ``sources`` give the slots their rows, where the batch does not bring them.

    Parameters
    ----------
    program : Program
        The graph; which taps it hands out does not matter.
    sequences : Sequences
        What is stored already.
    n_vocab, n_ctx : int
        Tokens are below the one, positions below the other.
    starts_late : bool
        Whether a sequence's first row may have another position than 0, as a drafter's.
    """

    def __init__(
        self,
        program: Program,
        sequences: Sequences,
        *,
        n_vocab: int,
        n_ctx: int,
        starts_late: bool,
    ) -> None:
        self.sources: dict[str, SlotSource] = {}
        self._program, self._sequences = program, sequences
        self._n_vocab, self._n_ctx, self._starts_late = n_vocab, n_ctx, starts_late
        self._n_axes, self._slots = program.n_axes, program.slots()
        self._whole_slot = program.whole_slot
        self._n_codes, self._n_per_codebook = program.n_codes, program.n_per_codebook
        # Which token ids there are then depends on the position; `_chains` knows one limit for all.
        self._has_parts = program.n_tokens_at(np.zeros(1, np.int32)) is not None

    def admit(self, batch: Batch, fused_sampling: FusedSampling | None = None) -> Admitted:
        """Return the rows of a batch, the places that they take, and whose they are.

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
        if not len(batch.tokens):
            raise BatchError("an empty batch", fix="leave the call out")
        # A round's batch is nearly always text, which one loop in C checks in a tenth of the time
        # that NumPy's calls take. What that loop does not accept is looked at again by the code
        # that knows what is wrong with it.
        place, ranges, rows_of_seq, outputs = self._chains(batch) or self._look_closer(batch)
        if self._whole_slot is not None:
            self._check_delivered(ranges)
        if fused_sampling is not None:
            fused_sampling = read_fused_sampling(fused_sampling, len(outputs))
        adapters, adapter_scales = self._sequences.adapters.of_rows(batch.seq)
        checked = CheckedBatch(
            tokens=batch.tokens,
            positions=self._positions(batch),
            seq=batch.seq,
            place=place,
            outputs=outputs,
            parent=batch.parent,
            until=self._until(batch, place, ranges),
            embeddings=self._embeddings(batch),
            codes=self._codes(batch),
            adapters=adapters,
            adapter_scales=adapter_scales,
            slots=self._fetch(batch, place),
            fused_sampling=fused_sampling,
        )
        return checked, ranges, rows_of_seq

    def check_rows(self, batch: Batch) -> None:
        """Refuse rows that the graph does not read, wherever they are stored.

        Raises
        ------
        BatchError
            Naming the first one.
        """
        self._check_positions(batch)
        self._check_tokens(batch)
        self._embeddings(batch)
        self._codes(batch)

    def _chains(self, batch: Batch) -> Placed | None:
        """Place rows that are tokens, one after the other; None where there is anything else."""
        if batch.pos.ndim != 1 or batch.parent is not None or batch.embeddings is not None:
            return None
        if batch.codes is not None or self._has_parts:
            return None
        if self._sequences.undecided:  # perhaps of other sequences
            return None
        return place_rows(
            batch.tokens,
            batch.seq,
            batch.pos,
            batch.outputs,
            self._sequences.lengths,
            self._n_vocab,
            self._n_ctx,
            self._starts_late,
        )

    def _look_closer(self, batch: Batch) -> Placed:
        """Place rows of any kind; raise for the first that does not fit."""
        self._check_seqs(batch)
        place, ranges, rows_of_seq = self._places(batch)
        self._check_positions(batch)
        self._check_tokens(batch)
        return place, ranges, rows_of_seq, np.flatnonzero(batch.outputs).astype(np.int32)

    def _check_seqs(self, batch: Batch) -> None:
        bad = np.flatnonzero((batch.seq < 0) | (batch.seq >= self._sequences.n_seq_max))
        if len(bad):
            raise BatchError(
                "no such sequence",
                where=f"row {bad[0]}",
                wanted=f"0..{self._sequences.n_seq_max - 1}",
                got=int(batch.seq[bad[0]]),
                fix="make n_seq_max larger",
            )

    def _check_tokens(self, batch: Batch) -> None:
        n_vocab: int | NDArray[np.int64] = self._n_vocab
        axis = batch.pos if batch.pos.ndim == 1 else batch.pos[:, 0]
        if (of_parts := self._program.n_tokens_at(axis)) is not None:
            n_vocab = np.minimum(n_vocab, of_parts)
        # -1 stands for no token: the row is an embedding row, or codes alone.
        low = 0 if batch.embeddings is None and batch.codes is None else -1
        bad = np.flatnonzero((batch.tokens < low) | (batch.tokens >= n_vocab))
        if len(bad):
            raise BatchError(
                "no such token",
                where=f"row {bad[0]}",
                wanted=f"{low}..{np.broadcast_to(n_vocab, len(batch))[bad[0]] - 1}",
                got=int(batch.tokens[bad[0]]),
            )
        if batch.embeddings is None:
            return
        inputs = self._program.inputs
        if "embeddings" not in inputs:
            raise BatchError("this graph takes no embedding rows", where=self._program.name)
        width = self._program.values[inputs["embeddings"]].shape[1]
        if batch.embeddings.shape[1] != width:
            raise BatchError(
                "embedding rows have another width", wanted=width, got=batch.embeddings.shape[1]
            )

    def _embeddings(self, batch: Batch) -> NDArray[np.float32] | None:
        """Return the embedding rows; zeros for rows that have codes and nothing else."""
        if batch.embeddings is not None or batch.codes is None or (batch.tokens >= 0).all():
            return batch.embeddings
        inputs = self._program.inputs
        if "embeddings" not in inputs:
            raise BatchError("this graph takes no rows without tokens", where=self._program.name)
        # The embeddings of codes are added to a row's own, which such a row does not have.
        width = int(self._program.values[inputs["embeddings"]].shape[1])
        return np.zeros((len(batch), width), np.float32)

    def _codes(self, batch: Batch) -> I32 | None:
        """Return the codes of all rows, where the graph reads any."""
        n_codes, codes = self._n_codes, batch.codes
        if codes is None:
            return np.full((len(batch), n_codes), -1, np.int32) if n_codes else None
        if codes.shape[1] != n_codes:
            raise BatchError(
                "codes of another number of codebooks",
                where=self._program.name,
                wanted=n_codes or "none: the graph reads no codes",
                got=codes.shape[1],
            )
        bad = np.argwhere((codes < -1) | (codes >= np.array(self._n_per_codebook)))
        if len(bad):
            raise BatchError(
                "no such code",
                where=f"row {bad[0][0]}, codebook {bad[0][1]}",
                wanted=f"-1..{self._n_per_codebook[bad[0][1]] - 1}",
                got=int(codes[tuple(bad[0])]),
            )
        if batch.embeddings is None:
            empty = np.flatnonzero((batch.tokens < 0) & (codes < 0).all(axis=1))
            if len(empty):
                raise BatchError(
                    "a row without a token, a code or an embedding", where=f"row {empty[0]}"
                )
        return codes

    def _places(self, batch: Batch) -> tuple[I32, Ranges, RowsOfSeq]:
        """Return the place of each row, and the places and rows of each sequence."""
        place = np.empty(len(batch), np.int32)
        ranges: Ranges = {}
        rows_of_seq: RowsOfSeq = {}
        for seq in dict.fromkeys(batch.seq.tolist()):
            indices = rows_of_seq[seq] = np.flatnonzero(batch.seq == seq)
            length = self._sequences.lengths[seq]
            self._sequences.check_decided(seq)
            begin = length
            # A drafter's first entry may be that of the second token; everything else starts at 0.
            if length == 0 and self._starts_late:
                begin = int(batch.pos[indices[0]]) if batch.pos.ndim == 1 else batch.place or 0
            if batch.place not in (None, begin):
                raise BatchError(
                    "place does not continue the sequence",
                    where=f"sequence {seq}",
                    wanted=begin,
                    got=batch.place,
                )
            place[indices] = begin + np.arange(len(indices))
            ranges[seq] = (begin, begin + len(indices))
            if batch.pos.ndim == 1:
                _check_chain(batch, indices, place, begin, seq)
        return place, ranges, rows_of_seq

    def _check_delivered(self, ranges: Ranges) -> None:
        """Refuse rows of a sequence that has nothing to attend to."""
        memory = self._sequences.memory
        delivered = memory.delivered if memory else None
        for seq in ranges:
            if delivered is None or not delivered.length(seq):
                raise LinkError(
                    "no whole sequence was delivered",
                    where=f"slot {self._whole_slot!r}, sequence {seq}",
                    fix="process() the sequence in the linked context first; link(Context(model)) "
                    "makes one where the model's declaration says what feeds the slot",
                )

    def _check_positions(self, batch: Batch) -> None:
        axes = self._n_axes
        if batch.pos.ndim == 2 and batch.pos.shape[1] != axes:
            raise BatchError(
                "positions have another number of axes", wanted=axes, got=batch.pos.shape[1]
            )
        bad = np.argwhere((batch.pos < 0) | (batch.pos >= self._n_ctx))
        if len(bad):
            raise BatchError(
                "position lies outside the context",
                where=f"row {bad[0][0]}",
                wanted=f"0..{self._n_ctx - 1}",
                got=int(batch.pos[tuple(bad[0])]),
                fix="make n_ctx larger",
            )

    def _positions(self, batch: Batch) -> I32:
        """Return int32[n, axes]."""
        if batch.pos.ndim == 2:
            return batch.pos
        axes = self._n_axes
        pos = self._sequences.positions.of_places(batch.seq, batch.pos)[:, None]
        return pos if axes == 1 else np.ascontiguousarray(np.repeat(pos, axes, axis=1))

    def _until(self, batch: Batch, place: I32, ranges: Ranges) -> I32 | None:
        """Return what rows of spans see, where the graph has a mask for them."""
        until = batch.until
        if until is None or not self._program.sees_spans:
            return None
        if batch.parent is not None:
            raise BatchError("a draft tree has no spans", where=self._program.name)
        # What a row of a span sees after itself has to be there when it runs, so in this batch.
        ends = np.array([ranges[seq][1] for seq in batch.seq.tolist()], np.int32)
        bad = np.flatnonzero((until <= place) | (until > ends))
        if len(bad):
            raise BatchError(
                "a span ends after its rows, and with the batch at the latest",
                where=f"row {bad[0]}",
                wanted=f"{place[bad[0]] + 1}..{ends[bad[0]]}",
                got=int(until[bad[0]]),
            )
        return until

    def _fetch(self, batch: Batch, place: I32) -> dict[str, NDArray[np.float32]]:
        """Return the rows of each slot: those that the batch brings, or else those of its link."""
        slots: dict[str, NDArray[np.float32]] = {}
        if not self._slots and not batch.slots:
            return slots
        for slot, width in self._slots.items():
            if slot in batch.slots:
                rows = batch.slots[slot]
            elif slot in self.sources:
                rows = self.sources[slot](batch.seq, place)
            else:
                raise LinkError(
                    "rows of a slot are missing",
                    where=f"slot {slot!r}, sequence {batch.seq[0]}, place {place[0]}",
                    fix="link a context to this slot, feed() rows, or give Batch(slots=)",
                )
            if rows.shape != (len(batch), width):
                raise BatchError(
                    "slot rows do not fit",
                    where=f"slot {slot!r}",
                    wanted=(len(batch), width),
                    got=rows.shape,
                )
            slots[slot] = rows
        if unknown := batch.slots.keys() - slots.keys():
            raise BatchError(
                "slots that the graph does not have",
                where=self._program.name,
                wanted=", ".join(slots) or "none",
                got=", ".join(sorted(unknown)),
            )
        return slots


def _check_chain(batch: Batch, indices: NDArray[np.intp], place: I32, begin: int, seq: int) -> None:
    """Refuse rows of a sequence that do not follow each other, or their parents."""
    wanted = place
    if batch.parent is not None:
        # Each row of a tree is stored in a place of its own, but siblings have one position: they
        # are alternatives for the same place of the text.
        wanted = place.copy()
        for row in indices.tolist():
            parent = int(batch.parent[row])
            wanted[row] = begin if parent < 0 else wanted[parent] + 1
    # A drafter's first row says itself where its sequence begins, so that even -1 would be wanted.
    bad = indices[(batch.pos[indices] != wanted[indices]) | (batch.pos[indices] < 0)]
    if len(bad):
        raise BatchError(
            "place does not continue the sequence",
            where=f"row {bad[0]}, sequence {seq}",
            wanted=max(int(wanted[bad[0]]), 0),
            got=int(batch.pos[bad[0]]),
        )
