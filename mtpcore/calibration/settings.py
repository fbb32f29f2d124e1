"""Settings of a calibration."""

from __future__ import annotations

import msgspec

__all__ = ["ImportanceSettings"]


class ImportanceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is read, and what is kept of it.

    Attributes
    ----------
    chunk_size : int
        Tokens of a chunk, which is a sequence of its own.
    n_chunks : int, optional
        How many chunks are read; default: all.
    first_chunk : int
        How many chunks are passed over.
    parse_special : bool
        Whether marks in the text are tokens, and not characters.
    with_output : bool
        Whether the output matrix gets weights, too.
    heads : bool
        Whether the heads run, too.
    perplexity : bool
        Whether logits are made, and what they say of the text is measured.
    save_every : int
        After how many chunks the file is written; 0: at the end alone.
    keep_every : int
        After how many chunks a copy of it is kept, as ``FILE.at_20``; 0: none.
    rows : int
        The most rows of a batch. They are fewer where what a graph hands out for them would be
        more than ``handed_out`` bytes, but no fewer than 16.
    handed_out : int
    """

    chunk_size: int = 512
    n_chunks: int | None = None
    first_chunk: int = 0
    parse_special: bool = False
    with_output: bool = False
    heads: bool = True
    perplexity: bool = True
    save_every: int = 10
    keep_every: int = 0
    rows: int = 512
    handed_out: int = 256 << 20
