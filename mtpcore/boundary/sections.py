"""Named sections with checksums in one file: written in one go, read within bounds.

A file is the magic word with the version of the format (u32), the sections one after the other, a
table of their names, sizes and hashes (MessagePack), and a tail: the table's size (u64) and hash.
Numbers are little-endian, hashes are BLAKE2b of 16 bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Annotated, BinaryIO

import msgspec

from mtpcore.errors import StateError

__all__ = ["Pieces", "read_sections", "write_sections"]

Pieces = Iterable[bytes | memoryview]
"""The bytes of a section, in any number of pieces."""

_MAGIC = b"mtpcore state\n"
_HASH_BYTES = 16
_HEAD = struct.Struct(f"<{len(_MAGIC)}sI")
_TAIL = struct.Struct(f"<Q{_HASH_BYTES}s")
_LONGEST_TABLE = 1 << 20


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(max_length=200)]
    size: Annotated[int, msgspec.Meta(ge=0)]
    hash: bytes


_table = msgspec.msgpack.Decoder(list[_Section])


def write_sections(file: BinaryIO, version: int, sections: Iterable[tuple[str, Pieces]]) -> None:
    """Write sections, each by its name, in their order.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    file.write(_HEAD.pack(_MAGIC, version))
    table = []
    for name, pieces in sections:
        hashed, size = hashlib.blake2b(digest_size=_HASH_BYTES), 0
        for piece in pieces:
            hashed.update(piece)
            size += memoryview(piece).nbytes
            file.write(piece)
        table.append(_Section(name, size, hashed.digest()))
    encoded = msgspec.msgpack.encode(table)
    file.write(encoded)
    file.write(_TAIL.pack(len(encoded), _hash(encoded)))


def read_sections(data: bytes, version: int) -> dict[str, memoryview]:
    """Return the sections by name, each as it was written.

    Raises
    ------
    StateError
        No such file, of another version, cut short or damaged; names the section.
    """
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise StateError("not a saved state", fix="give what save() returned or wrote")
    _, found = _HEAD.unpack_from(data)
    if found != version:
        raise StateError(
            "a state in another format",
            wanted=f"version {version}",
            got=f"version {found}",
            fix="process the text again, with this version of mtpcore",
        )
    table, end = _read_table(data)
    sections: dict[str, memoryview] = {}
    view, begin = memoryview(data), _HEAD.size
    for name, size, wanted in ((one.name, one.size, one.hash) for one in table):
        part = view[begin : begin + size]
        if len(part) != size or begin + size > end or name in sections or _hash(part) != wanted:
            raise StateError("a part of the state is damaged", where=name)
        sections[name] = part
        begin += size
    if begin != end:
        raise StateError("a state with further bytes", wanted=begin, got=end)
    return sections


def _read_table(data: bytes) -> tuple[list[_Section], int]:
    """Return the table and where it begins."""
    table_end = len(data) - _TAIL.size
    if table_end >= _HEAD.size:
        size, wanted = _TAIL.unpack_from(data, table_end)
        begin = table_end - size
        if size <= _LONGEST_TABLE and begin >= _HEAD.size:
            encoded = data[begin:table_end]
            if _hash(encoded) == wanted:
                try:
                    return _table.decode(encoded), begin
                except msgspec.MsgspecError as error:
                    raise StateError("no table of sections", got=error) from error
    raise StateError("the state is cut short, or its end is damaged")


def _hash(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=_HASH_BYTES).digest()
