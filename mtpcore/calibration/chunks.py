"""Texts as chunks of tokens, each of which is read as a sequence of its own."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from mtpcore.boundary.texts import read_pieces
from mtpcore.errors import BatchError
from mtpcore.gguf import Tokenizer

__all__ = ["cut_chunks", "read_chunks"]

I32 = NDArray[np.int32]


def read_chunks(
    tokenizer: Tokenizer,
    texts: Iterable[str | PathLike[str]],
    chunk_size: int,
    *,
    parse_special: bool = False,
) -> I32:
    """Read texts, one after the other, and cut them; see ``cut_chunks``.

    Raises
    ------
    ModelFileError
        A text cannot be read.
    BatchError
        As ``cut_chunks``.
    """
    tokens: list[int] = []
    for path in texts:
        for piece in read_pieces(path):
            first = not tokens
            tokens += tokenizer.encode(piece, add_special=first, parse_special=parse_special)
    adds_bos = tokenizer.vocabulary.add_bos and tokenizer.bos is not None
    return cut_chunks(np.asarray(tokens, np.int32), chunk_size, tokenizer.bos if adds_bos else None)


def cut_chunks(tokens: I32, chunk_size: int, bos: int | None) -> I32:
    """Return int32[n_chunks, chunk_size]; what is left over at the end is not read.

    Parameters
    ----------
    tokens : int32[n]
    chunk_size : int
    bos : int or None
        What takes the place of each chunk's first token, as llama.cpp has it.

    Raises
    ------
    BatchError
        There are not enough for one chunk.
    """
    n = len(tokens) // chunk_size
    if not n:
        raise BatchError(
            "the text is shorter than a chunk",
            wanted=f"{chunk_size} tokens",
            got=len(tokens),
            fix="give a longer text, or smaller chunks (-c)",
        )
    chunks = tokens[: n * chunk_size].reshape(n, chunk_size).copy()
    if bos is not None:
        chunks[:, 0] = bos
    return chunks
