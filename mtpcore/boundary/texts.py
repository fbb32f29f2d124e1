"""Texts from callers, and from files in pieces that end with lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from os import PathLike

from mtpcore.boundary.paths import open_stream, take_path
from mtpcore.errors import BatchError, ModelFileError, MtpcoreError, spell

__all__ = ["each_text", "read_pieces"]

_PIECE = 1 << 20  # characters, and the rest of the line


def each_text(texts: str | Iterable[str]) -> Iterator[str]:
    """Yield a text, or each of several.

    Raises
    ------
    BatchError
        Whatever a caller's object raises.
    MtpcoreError
        As it is, where reading a text raises it.
    """
    if isinstance(texts, str):
        yield texts
        return
    try:
        yield from texts
    except (MemoryError, MtpcoreError):
        raise
    except Exception as error:
        raise BatchError("no pieces of a text", got=spell(error, str)) from error


def read_pieces(path: str | PathLike[str]) -> Iterator[str]:
    """Yield a text in UTF-8 piece by piece; what is no UTF-8 comes as a replacement character.

    Raises
    ------
    ModelFileError
        It cannot be read.
    """
    path = take_path(path)
    try:
        with TextIOWrapper(open_stream(path), "utf-8", "replace") as file:
            while piece := file.read(_PIECE):
                yield piece + file.readline(_PIECE)
    except OSError as error:
        raise ModelFileError("cannot read the text", where=str(path), got=error.strerror) from error
