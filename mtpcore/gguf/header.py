"""Bounded parsing of a GGUF header (versions 2 and 3, little-endian).

Source of the layout: the GGUF specification of the ggml project. Every count, length and offset is
held against the bytes that are there before anything of that size is made, so that a hostile file
costs an error and not the machine's memory.
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np

from mtpcore._ext._strings import read_strings
from mtpcore.boundary.paths import choose_fix
from mtpcore.errors import ModelFileError
from mtpcore.gguf.axes import fit_axes
from mtpcore.gguf.types import BLOCKS, type_name

__all__ = [
    "NOT_GGUF",
    "Header",
    "Metadata",
    "MetadataValue",
    "StoredValue",
    "TensorInfo",
    "parse_header",
    "stored_metadata",
]

MetadataValue: TypeAlias = "bool | int | float | str | np.ndarray | list[MetadataValue]"
Metadata: TypeAlias = dict[str, MetadataValue]

NOT_GGUF = "give a GGUF file; mtpcore convert makes one of a published checkpoint's folder"
MAX_HEADER = 64 << 20  # bytes; the largest published vocabularies need about 15 MiB
MAX_STRING = 16 << 20  # bytes of one metadata string
MAX_OBJECTS = 1 << 21  # strings and inner arrays of a whole header: they outgrow their bytes
MAX_ENTRIES = 1 << 16  # metadata keys, and tensors
MAX_NAME = {"key": 65_535, "tensor name": 512}  # bytes
MAX_DEPTH = 4  # of arrays inside arrays
MAX_DIMS = 4

_U32, _U64, _PAIR = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<IQ")
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_DTYPES = {kind: np.dtype(code) for kind, code in {**_SCALARS, _BOOL: "u1"}.items()}
_DAMAGED = "the file is damaged or incomplete: fetch or convert it again"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as its header entry describes it.

    ``shape`` is outermost first, without axes of 1 at its front; ``begin`` and ``n_bytes`` are the
    checked range in the file. How many bytes a tensor of an unknown type takes is not known: 0.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    begin: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed header: version, metadata and the tensors in the order of the file."""

    version: int
    metadata: Metadata
    tensors: list[TensorInfo]


class _Cursor:
    """A position in the header; every read is checked first, and errors name the place."""

    def __init__(self, data: bytes | mmap.mmap, file: str) -> None:
        self.data, self.file, self.place = data, file, ""
        self.pos, self.end = 0, min(len(data), MAX_HEADER)
        self.n_objects = 0

    def error(self, what: str, *, wanted: object = None, got: object = None) -> ModelFileError:
        where = f"{self.file}: {self.place}" if self.place else self.file
        return ModelFileError(what, where=where, wanted=wanted, got=got, fix=_DAMAGED)

    def need(self, n_bytes: int, what: str) -> None:
        """Refuse to go on unless ``n_bytes`` more bytes are there."""
        left = self.end - self.pos
        if n_bytes > left:
            limit = " (the limit of a header)" if self.end < len(self.data) else ""
            raise self.error(
                f"{what} ends after the end of the file{limit}",
                wanted=f"{n_bytes} bytes at {self.pos}",
                got=f"{left} bytes",
            )

    def count_objects(self, n: int) -> None:
        self.n_objects += n
        if self.n_objects > MAX_OBJECTS:
            raise self.error("too many strings", wanted=f"<= {MAX_OBJECTS}", got=self.n_objects)

    def number(self, packed: struct.Struct, what: str) -> int:
        self.need(packed.size, what)
        (value,) = packed.unpack_from(self.data, self.pos)
        self.pos += packed.size
        return int(value)

    def take(self, n_bytes: int, what: str) -> bytes:
        self.need(n_bytes, what)
        begin, self.pos = self.pos, self.pos + n_bytes
        return self.data[begin : self.pos]

    def name(self, what: str) -> str:
        """Read a key or a tensor name: short, not empty, valid UTF-8."""
        length = self.number(_U64, what)
        if not 0 < length <= MAX_NAME[what]:
            raise self.error(f"bad length of a {what}", wanted=f"1..{MAX_NAME[what]}", got=length)
        text = self.take(length, what)
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise self.error(f"a {what} is not UTF-8", got=text[:80]) from None

    def string(self) -> str:
        length = self.number(_U64, "string")
        if length > MAX_STRING:
            raise self.error("string too long", wanted=f"<= {MAX_STRING} bytes", got=length)
        # Vocabularies hold pieces of characters; the escapes keep their bytes recoverable.
        return self.take(length, "string").decode("utf-8", "surrogateescape")

    def strings(self, n: int) -> list[MetadataValue]:
        """Read ``n`` strings."""
        self.need(8 * n, "array of strings")
        self.count_objects(n)
        texts, pos = read_strings(self.data, self.pos, self.end, n, MAX_STRING)
        if len(texts) < n:
            raise self.error(
                f"string {len(texts)} of an array is too long for the file",
                wanted=f"{n} strings",
                got=f"{len(texts)}",
            )
        self.pos = pos
        return cast("list[MetadataValue]", texts)

    def value(self, kind: int) -> MetadataValue:
        if kind == _ARRAY:
            return self.array(1)
        if kind == _STRING:
            return self.string()
        number = self.numbers(kind, 1)[0]
        value: bool | int | float = number.item()
        return value

    def numbers(self, kind: int, n: int) -> np.ndarray:
        dtype = _DTYPES.get(kind)
        if dtype is None:
            raise self.error("unknown type of a value", wanted="0..12", got=kind)
        raw = self.take(n * dtype.itemsize, "value")
        values = np.frombuffer(raw, dtype) if n else np.empty(0, dtype)
        if kind == _BOOL:
            if n and values.max() > 1:
                raise self.error("bad truth value", wanted="0 or 1", got=int(values.max()))
            values = values.astype(np.bool_)
        return values

    def array(self, depth: int) -> MetadataValue:
        if depth > MAX_DEPTH:
            raise self.error("arrays nested too deep", wanted=f"<= {MAX_DEPTH}", got=depth)
        self.need(_PAIR.size, "array")
        kind, n = _PAIR.unpack_from(self.data, self.pos)
        self.pos += _PAIR.size
        if kind == _STRING:
            return self.strings(n)
        if kind != _ARRAY:
            return self.numbers(kind, n)
        self.need(_PAIR.size * n, "array of arrays")
        self.count_objects(n)
        return [self.array(depth + 1) for _ in range(n)]


def parse_header(data: bytes | mmap.mmap, file: str, *, any_type: bool = False) -> Header:
    """Parse the header at the start of ``data``, the bytes of a whole file.

    Parameters
    ----------
    data : bytes or mmap.mmap
        All bytes of the file: tensor ranges are checked against their number.
    file : str
        The file's name, for errors.
    any_type : bool
        Whether tensors may have types that are not known: they can be listed, and not read.

    Raises
    ------
    ModelFileError
        Naming the file and the key or tensor that is wrong, or newer than this version.
    """
    at = _Cursor(data, file)
    if data[:4] != b"GGUF":
        raise ModelFileError(
            "not a GGUF file",
            where=file,
            wanted="the bytes 'GGUF' at its start",
            got=repr(bytes(data[:4]))[1:],
            fix=choose_fix(bytes(data[:32]), NOT_GGUF),
        )
    at.pos = 4
    version = at.number(_U32, "header")
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        kind = "big-endian file" if swapped in (2, 3) else "unsupported version"
        raise ModelFileError(
            kind,
            where=file,
            wanted="GGUF 2 or 3, little-endian",
            got=f"version {min(version, swapped)}",
            fix="convert the model again with a current converter",
        )
    n_tensors, n_keys = at.number(_U64, "header"), at.number(_U64, "header")
    for what, n in (("metadata keys", n_keys), ("tensors", n_tensors)):
        if n > MAX_ENTRIES:
            raise at.error(f"too many {what}", wanted=f"<= {MAX_ENTRIES}", got=n)
    metadata = _read_metadata(at, n_keys)
    return Header(version, metadata, _read_tensors(at, n_tensors, metadata, any_type))


class StoredValue(bytes):
    """A metadata value as a file has it, type id first.

    As it is parsed it does not say whether it was stored in 8 bits or in 64.
    """


def stored_metadata(data: bytes | mmap.mmap, file: str) -> dict[str, StoredValue]:
    """Return each metadata key with its value as the file has it.

    Raises
    ------
    ModelFileError
        As ``parse_header``.
    """
    at = _Cursor(data, file)
    at.pos = 16  # after the mark, the version and the number of tensors
    stored: dict[str, StoredValue] = {}
    for _ in range(at.number(_U64, "header")):
        key, begin = at.name("key"), at.pos
        at.value(at.number(_U32, "type of a value"))
        stored[key] = StoredValue(data[begin : at.pos])
    return stored


def _read_metadata(at: _Cursor, n_keys: int) -> Metadata:
    metadata: Metadata = {}
    for i in range(n_keys):
        at.place = f"metadata key {i} of {n_keys}"
        key = at.name("key")
        at.place = f"metadata key {key[:80]!r}"
        if key in metadata:
            raise at.error("the key occurs twice")
        metadata[key] = at.value(at.number(_U32, "type of a value"))
    at.place = ""
    return metadata


def _read_tensors(
    at: _Cursor, n_tensors: int, metadata: Metadata, any_type: bool
) -> list[TensorInfo]:
    alignment = metadata.get("general.alignment", 32)
    is_power = type(alignment) is int and alignment >= 8 and alignment & (alignment - 1) == 0
    if not isinstance(alignment, int) or not is_power:
        at.place = "metadata key 'general.alignment'"
        raise at.error("bad alignment", wanted="a power of two, at least 8", got=alignment)
    entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for i in range(n_tensors):
        at.place = f"tensor {i} of {n_tensors}"
        name = at.name("tensor name")
        at.place = f"tensor {name[:80]!r}"
        if name in entries:
            raise at.error("the tensor occurs twice")
        n_dims = at.number(_U32, "number of dimensions")
        if n_dims > MAX_DIMS:
            raise at.error("too many dimensions", wanted=f"<= {MAX_DIMS}", got=n_dims)
        dims = [at.number(_U64, "dimension") for _ in range(n_dims)]
        if min(dims, default=1) < 1:
            raise at.error("an empty dimension", wanted=">= 1", got=dims)
        kind, offset = at.number(_U32, "tensor type"), at.number(_U64, "tensor offset")
        if offset % alignment:
            raise at.error("unaligned tensor", wanted=f"a multiple of {alignment}", got=offset)
        entries[name] = (fit_axes(dims[::-1], min(n_dims, 1)), kind, offset)
    data_begin = -(-at.pos // alignment) * alignment
    if not any_type:
        _refuse_unknown_types(at, {name: kind for name, (_, kind, _) in entries.items()})
    infos = [_locate(at, name, *entry, data_begin) for name, entry in entries.items()]
    _refuse_overlap(at, infos)
    return infos


def _locate(
    at: _Cursor, name: str, shape: tuple[int, ...], kind: int, offset: int, data_begin: int
) -> TensorInfo:
    """Check one tensor's type, row length and range in the file."""
    at.place = f"tensor {name[:80]!r}"
    n_values, n_bytes = BLOCKS.get(kind, (1, 0))
    row = shape[-1] if shape else 1
    if row % n_values:
        raise at.error(
            f"rows are not whole {type_name(kind)} blocks",
            wanted=f"a multiple of {n_values}",
            got=row,
        )
    size, begin = math.prod(shape) // n_values * n_bytes, data_begin + offset
    if begin + size > len(at.data):
        raise at.error(
            "the tensor ends after the end of the file",
            wanted=f"{size} bytes at {begin}",
            got=f"a file of {len(at.data)} bytes",
        )
    return TensorInfo(name, shape, kind, begin, size)


def _refuse_unknown_types(at: _Cursor, kinds: dict[str, int]) -> None:
    unknown = [name for name, kind in kinds.items() if kind not in BLOCKS]
    if unknown:
        others = f"; so have {len(unknown) - 1} further tensors" if len(unknown) > 1 else ""
        raise ModelFileError(
            "this version does not know the tensor type",
            where=f"{at.file}: tensor {unknown[0][:80]!r}",
            wanted=f"one of {len(BLOCKS)} types up to {max(BLOCKS)}",
            got=f"type {kinds[unknown[0]]}{others}",
            fix="install a newer version, or take the model in another type; mtpcore inspect "
            "shows what the file holds",
        )


def _refuse_overlap(at: _Cursor, infos: list[TensorInfo]) -> None:
    in_order = sorted(infos, key=lambda info: info.begin)
    for before, after in itertools.pairwise(in_order):
        if before.begin + before.n_bytes > after.begin:
            at.place = f"tensor {after.name[:80]!r}"
            raise at.error(f"the tensor overlaps tensor {before.name[:80]!r}")
