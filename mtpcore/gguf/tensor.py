"""A mapped file and the tensors in it."""

from __future__ import annotations

import logging
import math
import mmap
import os
import stat
from collections.abc import Callable, Collection, Iterable
from copy import copy
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from mtpcore.boundary.copies import Uncopied
from mtpcore.errors import ModelFileError
from mtpcore.gguf.header import NOT_GGUF, TensorInfo
from mtpcore.gguf.types import BLOCKS, F16, F32, PLAIN, dequantize, type_name
from mtpcore.system.memory import give_back

__all__ = ["MappedFile", "Tensor"]

log = logging.getLogger("mtpcore")

RowTaker = Callable[[int, np.ndarray], None]
"""Takes rows: the number of the first, and uint8[rows, row_bytes]."""

_CHUNK = 1 << 18  # values converted at once, so that the float32 stage stays small
_F16_RANGE = (2.0**-12, 65504.0)  # largest magnitudes of a tensor that float16 serves well
_EXACT_IN_F32 = 1 << 24


class MappedFile(Uncopied):
    """A read-only map of one file, kept alive by every array cut from it.

    Reading a map beyond the end of a file that was truncated kills the process. So bytes are
    refused where the file has become shorter; but a caller that reads on in an array that was taken
    before is not safe from it.

    Attributes
    ----------
    path : Path
    data : mmap.mmap or None
        None once closed.
    """

    _instead = "open the file in each process; copy a tensor's values: tensor.array()"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.converted: set[tuple[int, int]] = set()
        try:
            # A pipe or a device would block, or have no end.
            mode = os.stat(path).st_mode
            if stat.S_ISDIR(mode):
                raise ModelFileError(
                    "a folder, not a model file",
                    where=str(path),
                    fix="give the GGUF file in it; mtpcore convert makes one of a published "
                    "checkpoint's folder",
                )
            if not stat.S_ISREG(mode):
                raise ModelFileError(
                    "not a regular file",
                    where=str(path),
                    fix="give the path of a GGUF file; what a pipe brings is saved to one first",
                )
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < 4:
                    raise ModelFileError(
                        "not a GGUF file", where=str(path), got=f"{size} bytes", fix=NOT_GGUF
                    )
                self.data: mmap.mmap | None = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            if isinstance(error, ModelFileError):
                raise
            reason = getattr(error, "strerror", None) or error
            raise ModelFileError(
                "cannot open the file",
                where=str(path),
                got=reason,
                fix="name a GGUF file that exists and can be read, or demo for the model in the "
                "package",
            ) from error

    def bytes_at(self, begin: int, n_bytes: int) -> np.ndarray:
        """Return uint8[n_bytes], a read-only view of the map.

        Raises
        ------
        ModelFileError
            The map was closed, or the file has become shorter since it was mapped.
        """
        if self.data is None:
            raise ModelFileError("the file is closed", where=str(self.path), fix="open it again")
        if self.data.size() < len(self.data):  # that of the file now, and when it was mapped
            raise ModelFileError(
                "the file has become shorter while it was in use",
                where=str(self.path),
                wanted=f"{len(self.data)} bytes",
                got=f"{self.data.size()} bytes",
                fix="load the model again; replace a file by renaming another to its name, never "
                "by writing into it",
            )
        return np.frombuffer(self.data, np.uint8, n_bytes, begin)

    def release(self, begin: int, n_bytes: int) -> None:
        """Let the system take back the pages of these bytes; they are read again when needed."""
        if self.data is not None:
            give_back(self.data, begin, n_bytes)

    def close(self) -> None:
        """Drop the map; the system unmaps it when the last array of it is gone."""
        self.data = None


class Tensor:
    """One tensor of a model file.

    Attributes
    ----------
    name : str
    shape : tuple of int
        Outermost axis first, as in NumPy, without axes of 1 at its front, which ggml leaves out.
    type : int
        Type id of ggml.
    n_bytes : int
        Bytes in the file.
    """

    __slots__ = ("_begin", "_file", "n_bytes", "name", "shape", "type")

    def __init__(self, file: MappedFile, info: TensorInfo) -> None:
        self.name, self.shape, self.type = info.name, info.shape, info.type
        self.n_bytes, self._begin, self._file = info.n_bytes, info.begin, file

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.shape}, {self.type_name})"

    @property
    def type_name(self) -> str:
        """Name of the type, as in ``"Q8_0"``."""
        return type_name(self.type)

    @property
    def path(self) -> Path:
        """The file that holds the tensor."""
        return self._file.path

    @property
    def n_rows(self) -> int:
        """Number of rows: all axes but the innermost, taken together."""
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.n_bytes // self.n_rows

    @property
    def offset(self) -> int | None:
        """Where its bytes begin in the mapped file; None where they are a copy."""
        return self._begin

    def called(self, name: str) -> Tensor:
        """Return the tensor under another name."""
        other = copy(self)
        other.name = name
        return other

    def raw(self) -> np.ndarray:
        """Return uint8[*shape[:-1], row_bytes], a read-only view of the mapped file."""
        return self._file.bytes_at(self._begin, self.n_bytes).reshape(
            *self.shape[:-1], self.row_bytes
        )

    def release(self, begin: int = 0, end: int | None = None) -> None:
        """Let the system reclaim the pages of these rows; they are read again when needed."""
        n = (self.n_rows if end is None else end) - begin
        self._file.release(self._begin + begin * self.row_bytes, n * self.row_bytes)

    def array(self, dtype: DTypeLike = np.float32) -> np.ndarray:
        """Return the values, dequantised, with ``shape`` and ``dtype``.

        A tensor stored in ``dtype`` comes as a read-only view of the mapped file.

        Raises
        ------
        ModelFileError
            If the type has no known conversion, or fractions are asked for as integers.
        """
        return self._values(self.raw(), np.dtype(dtype)).reshape(self.shape)

    def rows(self, begin: int, end: int) -> np.ndarray:
        """Return float32[end - begin, shape[-1]], dequantising those rows only."""
        if not 0 <= begin <= end <= self.n_rows:
            raise ModelFileError(
                "no such rows",
                where=f"{self.path}: tensor {self.name!r}",
                wanted=f"0 <= begin <= end <= {self.n_rows}",
                got=(begin, end),
            )
        blocks = self.raw().reshape(self.n_rows, self.row_bytes)[begin:end]
        return self._values(blocks, np.dtype(np.float32))

    def stream(
        self,
        native_types: Collection[int],
        ranges: Iterable[tuple[int, int]],
        start: Callable[[int], RowTaker],
    ) -> None:
        """Hand over the rows, range by range, in a type that a backend computes with.

        Types that are not native are converted: those that float32 holds exactly to F32, blocks
        to F16 where the tensor's largest value suits it, else to F32. One line per file and type
        is logged. What was handed over is released, so that no more than a range counts as memory.

        Parameters
        ----------
        native_types : collection of int
            Type ids; F32 must be among them.
        ranges : iterable of (int, int)
            First row and the one after the last, of each range; together all rows.
        start : callable
            Gets the type; returns what takes a range's first row and uint8[rows, bytes], a view
            that is valid during the call. Called again where float16 turns out not to suit.
        """
        ranges = list(ranges)
        if self.type in native_types:
            take = start(self.type)
            for begin, end in ranges:
                take(begin, self.raw().reshape(self.n_rows, self.row_bytes)[begin:end])
                self.release(begin, end)
            return
        f16_serves = BLOCKS[self.type][0] > 1 and F16 in native_types
        if not (f16_serves and self._convert(F16, ranges, start(F16))):
            self._convert(F32, ranges, start(F32))

    def native(self, native_types: Collection[int]) -> tuple[int, np.ndarray]:
        """Return the tensor in a type that a backend computes with.

        Returns
        -------
        type : int
        blocks : uint8[*shape[:-1], row_bytes]
            A view of the file, or the values as ``stream`` converts them.
        """
        if self.type in native_types:
            return self.type, self.raw()
        row, converted = self.shape[-1] if self.shape else 1, {}

        def start(kind: int) -> RowTaker:
            converted[kind] = whole = np.empty((self.n_rows, row), PLAIN[kind]).view(np.uint8)

            def take(begin: int, blocks: np.ndarray) -> None:
                whole[begin : begin + len(blocks)] = blocks

            return take

        step = max(1, _CHUNK // row)
        steps = range(0, self.n_rows, step)
        self.stream(native_types, [(i, min(i + step, self.n_rows)) for i in steps], start)
        kind, whole = converted.popitem()
        return kind, whole.reshape(*self.shape[:-1], -1)

    def _convert(self, kind: int, ranges: Iterable[tuple[int, int]], take: RowTaker) -> bool:
        """Hand over converted rows; False where float16 does not suit the values."""
        largest = 0.0
        for begin, end in ranges:
            values = self.rows(begin, end)
            self.release(begin, end)
            if kind == F16:
                largest = float(np.maximum(largest, np.abs(values).max(initial=0)))
                if not largest <= _F16_RANGE[1]:  # also when it is not a number
                    return False
            take(begin, np.ascontiguousarray(values, PLAIN[kind]).view(np.uint8))
        if kind == F16 and 0 < largest < _F16_RANGE[0]:
            return False
        if (self.type, kind) not in self._file.converted:
            self._file.converted.add((self.type, kind))
            kinds = (self.type_name, type_name(kind))
            log.info("%s: %s tensors are converted to %s at load", self.path, *kinds)
        return True

    def _values(self, blocks: np.ndarray, dtype: np.dtype) -> np.ndarray:
        values = dequantize(blocks, self.type)
        where = f"{self.path}: tensor {self.name!r}"
        if values is None:
            raise ModelFileError(
                "no conversion from this type is known", where=where, got=self.type_name
            )
        if values.dtype.kind == "f" and dtype.kind != "f":
            raise ModelFileError("fractions where integers belong", where=where, got=self.type_name)
        if values.dtype.kind == "i" and dtype == np.float32 and values.dtype.itemsize > 2:
            largest = max(int(values.max(initial=0)), -int(values.min(initial=0)))
            if largest > _EXACT_IN_F32:
                raise ModelFileError("integers too large for float32", where=where, got=largest)
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(dtype, copy=False)
