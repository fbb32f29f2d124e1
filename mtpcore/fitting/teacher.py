"""The teacher: a model that reads texts, and its rows in shards, which later fits reuse."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.fitting.stored import read_arrays, read_rows, write_arrays
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.runtime.fingerprint import Fingerprint
from mtpcore.runtime.model import Model

__all__ = ["Rows", "Shard", "Teacher"]

I32 = NDArray[np.int32]
F16 = NDArray[np.float16]

_LARGEST = float(np.finfo(np.float16).max)


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

    def _process(self, tokens: I32) -> tuple[F16, F16]:
        self._context.remove(0)
        out = self._context.process(Batch.of(tokens, outputs="none"))
        taps = np.concatenate([out.tap(tap) for tap in self._taps], axis=1)
        return _narrow(taps), _narrow(out.tap("hidden"))


def _narrow(rows: NDArray[np.float32]) -> F16:
    """Return rows as float16; the few values beyond its range become its largest."""
    return np.clip(rows, -_LARGEST, _LARGEST).astype(np.float16)
