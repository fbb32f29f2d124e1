"""The teacher: a model that reads texts, and its rows in shards, which later fits reuse."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.errors import LinkError, ModelFileError
from mtpcore.fitting.pace import time_per_token
from mtpcore.fitting.stored import read_arrays, read_rows, write_arrays
from mtpcore.gguf import Tensor
from mtpcore.gguf.types import dequantize
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.runtime.fingerprint import Fingerprint
from mtpcore.runtime.model import Model

__all__ = ["Rows", "Shard", "Teacher", "output_rows", "table_rows"]

I32 = NDArray[np.int32]
F16 = NDArray[np.float16]

_LARGEST = float(np.finfo(np.float16).max)
_COMPARED = 64
"""Rows whose distributions are compared with the model's."""
_APART = 0.1
"""Total variation; quantised activations make some hundredths."""


class Rows(msgspec.Struct, frozen=True):
    """What the teacher knows of one piece of text.

    Attributes
    ----------
    tokens : int32[n]
    taps : float16[n, width of all taps]
        The taps side by side.
    hidden : float16[n, width]
        After the final norm: with the output matrix they are the teacher's distributions.
    """

    tokens: I32
    taps: F16
    hidden: F16


class Shard(msgspec.Struct, frozen=True):
    """A file of the rows of several pieces.

    Attributes
    ----------
    path : Path
    begins : int64[n_pieces + 1]
        Where each piece begins, and where the last one ends.
    tokens : int32[n]
        Of all pieces.
    """

    path: Path
    begins: NDArray[np.int64]
    tokens: I32

    def read(self, piece: int) -> Rows:
        """Read the rows of one piece; no others come into memory.

        Raises
        ------
        ModelFileError
            The file can no longer be read.
        """
        begin, end = int(self.begins[piece]), int(self.begins[piece + 1])
        return Rows(*read_rows(self.path, ("tokens", "taps", "hidden"), begin, end))


class Teacher:
    """Reads pieces of text with a model, and keeps its rows in a folder.

    Parameters
    ----------
    model : Model
    taps : sequence of str
        The hidden states that the head reads.
    folder : Path
        Where shards lie. A shard is named by model, taps and tokens: what was read once, by this
        run, an interrupted one or an earlier one, is not read again.
    window : int
        Tokens of the longest piece.
    threads : int, optional
        Default: as a context's.
    """

    def __init__(
        self,
        model: Model,
        taps: Sequence[str],
        folder: Path,
        window: int,
        *,
        threads: int | None = None,
    ) -> None:
        self._taps, self._folder = tuple(taps), folder
        every = ("hidden", *self._taps)
        self._context = Context(model, window, n_batch=window, threads=threads, taps=every)
        origin = Fingerprint.of(self._context.runner)
        self._origin = msgspec.json.encode((origin, self._taps))

    def read(self, pieces: Sequence[I32]) -> Shard:
        """Return the shard of some pieces, which is written where there is none yet.

        Parameters
        ----------
        pieces : sequence of int32[n]
            Texts of their own: no row knows those of another piece.

        Raises
        ------
        ModelFileError
            The shard is damaged, or cannot be written.
        """
        begins = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
        tokens = np.concatenate(pieces)
        key = hashlib.blake2b(self._origin, digest_size=16)
        key.update(begins.tobytes() + tokens.tobytes())
        path = self._folder / f"rows-{key.hexdigest()}.safetensors"
        if path.exists():
            read_arrays(path)
        else:
            rows = [self._process(piece) for piece in pieces]
            taps, hidden = ([one[i] for one in rows] for i in range(2))
            joined = {"taps": np.concatenate(taps), "hidden": np.concatenate(hidden)}
            write_arrays(path, {"tokens": tokens, "begins": begins, **joined})
        return Shard(path, begins, tokens)

    def pace(self, piece: I32) -> float:
        """Return the seconds that it takes to read a token of a piece, which is not kept."""

        def read() -> int:
            self._process(piece)
            return len(piece)

        return time_per_token(read)

    def check_output(self, piece: I32, vocabulary: NDArray[np.int64]) -> None:
        """Check that rows and output matrix say what the model does, as training takes them to.

        Parameters
        ----------
        piece : int32[n]
        vocabulary : int64[n_drafted]
            The tokens whose probabilities are compared.

        Raises
        ------
        LinkError
            They do not: the model scales or bounds its logits, or adds to them.
        """
        self._context.remove(0)
        out = self._context.process(Batch.of(piece[:_COMPARED], outputs="all"))
        logits = out.tap("hidden") @ output_rows(self._context.model, vocabulary).T
        said, wanted = (_shares(rows) for rows in (logits, out.logits[:, vocabulary]))
        apart = float(np.abs(said - wanted).sum(axis=1).mean() / 2)
        if not apart < _APART:
            raise LinkError(
                "the model's logits are not the product of its last row and its output matrix",
                where=str(self._context.model.path),
                wanted=f"probabilities less than {_APART} apart",
                got=round(apart, 3),
            )

    def _process(self, tokens: I32) -> tuple[F16, F16]:
        self._context.remove(0)
        out = self._context.process(Batch.of(tokens, outputs="none"))
        taps = np.concatenate([out.tap(tap) for tap in self._taps], axis=1)
        return _narrow(taps), _narrow(out.tap("hidden"))


def output_rows(model: Model, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the rows of a model's output matrix, float32[n, width]; no others are dequantised."""
    tensors = model.tensors
    return table_rows(tensors.get("output.weight", tensors["token_embd.weight"]), tokens)


def table_rows(table: Tensor, ids: NDArray[Any]) -> NDArray[np.float32]:
    """Return rows of a table, float32[n, width]; no others are dequantised.

    Raises
    ------
    ModelFileError
        Values of its type cannot be had.
    """
    rows = dequantize(table.raw()[ids], table.type)
    if rows is None:
        raise ModelFileError(
            "no values can be made of this type",
            where=f"{table.path}: tensor {table.name!r}",
            got=table.type_name,
        )
    return rows.reshape(len(ids), -1).astype(np.float32)


def _shares(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: NDArray[np.float32] = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _narrow(rows: NDArray[np.float32]) -> F16:
    """Return rows as float16; the few values beyond its range become its largest."""
    return np.clip(rows, -_LARGEST, _LARGEST).astype(np.float16)
