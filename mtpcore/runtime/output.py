"""What ``Context.process`` returns: logits and tapped rows, addressed by sequence and place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import NO_TOKEN
from mtpcore.backends.base import CHOSEN
from mtpcore.boundary.arguments import read, read_below
from mtpcore.errors import BatchError, NoTokenError, spell

__all__ = ["Output"]

F32 = NDArray[np.float32]


class Output:
    """What one call of ``process`` computed; its arrays are never changed afterwards.

    Arrays of a device are copied to the host when they are read; ``as_computed`` leaves them there.

    ``seq`` int32[n_tokens] and ``place`` int32[n_tokens] say whose rows they are,
    ``outputs`` int32[n_outputs] which rows have logits,
    ``rows_of_seq`` which rows belong to a sequence.
    """

    def __init__(
        self,
        seq: NDArray[np.int32],
        place: NDArray[np.int32],
        outputs: NDArray[np.int32],
        rows_of_seq: Mapping[int, NDArray[np.intp]],
        arrays: Mapping[str, NDArray[Any]],
    ) -> None:
        self.seq, self.place, self.outputs = seq, place, outputs
        self.rows_of_seq = rows_of_seq
        self._arrays = arrays
        self._chosen: NDArray[np.int32] | None = arrays.get(CHOSEN)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in self._arrays.items())
        return f"Output({len(self.seq)} rows: {shapes})"

    @property
    def names(self) -> tuple[str, ...]:
        """What there is: taps and ``logits``."""
        return tuple(name for name in self._arrays if name != CHOSEN)

    @property
    def logits(self) -> F32:
        """float32[n_outputs, n_vocab]: a row for each output, in the order of the batch.

        Raises
        ------
        BatchError
            The graph has no logits, or tokens were chosen in place of some: see ``logits_at``.
        """
        chosen = self._chosen
        if chosen is not None and (chosen != -1).any():
            raise BatchError(
                "tokens were chosen in place of logits",
                where=f"output {int(np.argmax(chosen != -1))}",
                got=int(chosen.max()),
                fix="logits_at(i) has those of the others; or leave fused_sampling= out",
            )
        logits = self._arrays.get("logits")
        return self._array("logits") if logits is None else np.asarray(logits)

    @property
    def chosen(self) -> NDArray[np.int32] | None:
        """int32[n_outputs], the token of each output, or -1; None without ``fused_sampling``.

        Raises
        ------
        NoTokenError
            As ``chosen_at``, for any output.
        """
        chosen = self._chosen
        if chosen is not None and (chosen == NO_TOKEN).any():
            self.chosen_at(int(np.argmax(chosen == NO_TOKEN)))
        return chosen

    def chosen_at(self, output: int) -> int | None:
        """Return the token that one output chose; None where it had no sampler.

        Raises
        ------
        NoTokenError
            No token was left to choose there: every logit is minus infinity, or no number.
        """
        output, chosen = self._checked(output), self._chosen
        token = -1 if chosen is None else int(chosen[output])
        if token == NO_TOKEN:
            raise NoTokenError(
                "no token is left to choose",
                where=f"output {output}",
                got="every logit minus infinity, or no number",
                fix="let settings allow one token at least",
            )
        return None if token < 0 else token

    def logits_at(self, output: int) -> F32:
        """Return float32[n_vocab] of one output, counted in the order of the batch.

        Raises
        ------
        BatchError
            There is none, or it chose a token in place of them.
        """
        output, chosen = self._checked(output), self._chosen
        if chosen is not None and chosen[output] != -1:
            raise BatchError(
                "a token was chosen in place of logits",
                where=f"output {output}",
                got=int(chosen[output]),
                fix="give None as its sampler in fused_sampling=",
            )
        logits = self._array("logits")
        if chosen is not None and len(logits) < len(chosen):  # those of the others alone
            output = int(np.count_nonzero(chosen[:output] == -1))
        row: F32 = logits[output]
        return row

    def tap(self, name: str) -> F32:
        """Return float32[n_tokens, width] of a tap that the context was made with, by its name.

        Raises
        ------
        BatchError
            The context does not have this tap.
        """
        return self._array(name)

    def as_computed(self, name: str) -> F32:
        """Return what the plan made of a ``name``, a tap or ``logits``: float32[n, width].

        What a device's plan computed has not left the device. Such rows have a shape, and slices
        that stay there; ``np.asarray`` copies them to the host, and DLPack hands them to other
        libraries on the device (``torch.from_dlpack``). Rows of a batch that ran in several parts
        are on the host.

        Raises
        ------
        BatchError
            The context does not have this tap.
        """
        return self._found(name)

    def logits_of(self, seq: int, place: int) -> F32:
        """Return float32[n_vocab] of one row.

        Raises
        ------
        BatchError
            It was not asked for, or a token was chosen in place of it.
        """
        rows = self.outputs
        seq = read(seq, int, "no number of a sequence", wanted="an int")
        place = read(place, int, "no place", wanted="an int")
        matches = np.flatnonzero((self.seq[rows] == seq) & (self.place[rows] == place))
        if not len(matches):
            raise BatchError(
                "no logits of this row",
                where=f"sequence {spell(seq)}, place {spell(place)}",
                fix="ask for its output in the batch",
            )
        return self.logits_at(int(matches[-1]))

    def _checked(self, output: int) -> int:
        return read_below(output, len(self.outputs), "no such output")

    def _array(self, name: str) -> NDArray[Any]:
        return np.asarray(self._found(name))

    def _found(self, name: str) -> NDArray[Any]:
        if not isinstance(name, str) or name not in self._arrays:
            raise BatchError(
                "no such output",
                where=spell(name),
                got=", ".join(self.names),
                fix="name it in Context(taps=...); logits: leave fused_sampling= out",
            )
        return self._arrays[name]
