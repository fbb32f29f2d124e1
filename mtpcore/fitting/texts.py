"""Texts to learn from: whole files, each of which is either for training or held out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtpcore.boundary.paths import open_stream, take_path
from mtpcore.boundary.texts import read_pieces
from mtpcore.errors import BatchError, ModelFileError
from mtpcore.gguf import Tokenizer

__all__ = ["Split", "cut_pieces", "encode_file", "find_texts", "split_files"]

I32 = NDArray[np.int32]

_ENDINGS = (".md", ".py", ".rst", ".txt")
_ONE_IN = 20
"""Of so many files one is held out."""
_SHORTEST = 16
"""Tokens of a piece that is worth a pass."""


class Split(NamedTuple):
    """Files by what they are for, each list in an order that contents and seed decide."""

    train: list[Path]
    held_out: list[Path]


def find_texts(paths: Iterable[str | PathLike[str]]) -> Iterator[Path]:
    """Yield files; a folder stands for the sources and texts in it and below."""
    for path in map(take_path, paths):
        if path.is_dir():
            yield from (p for p in sorted(path.rglob("*")) if p.suffix in _ENDINGS and p.is_file())
        else:
            yield path


def split_files(paths: Iterable[Path], seed: int) -> Split:
    """Split files by a hash of seed and content; of files with equal content one is kept.

    A file stays on its side when others come or go, unless none would be held out.

    Raises
    ------
    BatchError
        Fewer than two files of different content.
    ModelFileError
        One cannot be read.
    """
    by_hash: dict[bytes, Path] = {}
    for path in paths:
        by_hash.setdefault(_hash_file(path, seed), path)
    if len(by_hash) < 2:
        raise BatchError(
            "a head is fitted to several texts, of which some are held out",
            wanted="two or more files of different content",
            got=len(by_hash),
            fix="give more files, or folders with sources and texts",
        )
    ranked = sorted(by_hash)
    limit = (2**64 // _ONE_IN).to_bytes(8, "big")
    n_held_out = min(max(sum(one < limit for one in ranked), 1), len(ranked) - 1)
    files = [by_hash[one] for one in ranked]
    return Split(files[n_held_out:], files[:n_held_out])


def _hash_file(path: Path, seed: int) -> bytes:
    hashed = hashlib.blake2b(f"{seed}\0".encode(), digest_size=16)
    try:
        with open_stream(path) as file:
            while block := file.read(1 << 20):
                hashed.update(block)
    except OSError as error:
        raise ModelFileError("cannot read the text", where=str(path), got=error.strerror) from error
    return hashed.digest()


def encode_file(tokenizer: Tokenizer, path: Path, most: int) -> I32:
    """Return the first tokens of a text, int32[n], at most ``most``.

    Raises
    ------
    ModelFileError
        It cannot be read.
    """
    tokens: list[int] = []
    for text in read_pieces(path):
        tokens += tokenizer.encode(text, add_special=not tokens)
        if len(tokens) >= most:
            break
    return np.asarray(tokens[:most], np.int32)


def cut_pieces(tokens: I32, window: int) -> list[I32]:
    """Cut tokens into pieces of ``window``; the rest is left out where it is too short."""
    pieces = [tokens[begin : begin + window] for begin in range(0, len(tokens), window)]
    return [piece for piece in pieces if len(piece) >= _SHORTEST]
