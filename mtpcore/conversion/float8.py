"""FP8 weights with a scale for each block."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from mtpcore.errors import ModelFileError

__all__ = ["e4m3_values", "find_ranks", "regroup", "scale_blocks"]


def _table() -> np.ndarray:
    """Return the value of each code: 1 sign, 4 exponent (bias 7) and 3 mantissa bits.

    Micikevicius et al., FP8 Formats for Deep Learning, 2022: no infinities, all ones is not a
    number.
    """
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    small = mantissa / 8 * 2.0**-6
    values = np.where(exponent == 0, small, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    values[(codes & 127) == 127] = np.nan
    return np.where(codes & 128, -values, values).astype(np.float32)


_VALUES = _table()


def e4m3_values(codes: np.ndarray) -> np.ndarray:
    """Return float32 values of uint8 codes."""
    values: np.ndarray = _VALUES[codes]
    return values


def scale_blocks(
    values: np.ndarray, scales: np.ndarray, block: tuple[int, int], n_ranks: int = 1
) -> None:
    """Multiply each block of a matrix by its scale, in place.

    Parameters
    ----------
    values : float32[n_rows, n_columns]
    scales : float32[n_row_blocks, n_column_blocks]
        The last block of a rank may reach over its end.
    block : (int, int)
        Rows and columns of a block.
    n_ranks : int
        Parts of equal rows that were scaled one by one.
    """
    per_rank, per_scale = len(values) // n_ranks, len(scales) // n_ranks
    for rank in range(n_ranks):
        rows = values[rank * per_rank : (rank + 1) * per_rank]
        for i in range(per_scale):
            row = np.repeat(scales[rank * per_scale + i], block[1])[: values.shape[1]]
            rows[i * block[0] : (i + 1) * block[0]] *= row


def find_ranks(n_rows: int, n_scales: int, block: int, candidates: tuple[int, ...]) -> int:
    """Return the first of ``candidates`` whose ranks have ``n_scales`` row blocks together.

    Raises
    ------
    ModelFileError
        None of the candidates has.
    """
    for n_ranks in candidates:
        if n_rows % n_ranks == 0 and n_ranks * -(-n_rows // n_ranks // block) == n_scales:
            return n_ranks
    raise ModelFileError(
        "the scales do not fit the matrix",
        wanted=f"row blocks of {block} in {' or '.join(map(str, candidates))} parts of {n_rows}",
        got=n_scales,
        fix="download the checkpoint again",
    )


def regroup(values: np.ndarray, parts: tuple[int, ...], n_ranks: int) -> np.ndarray:
    """Return rows part by part that lie rank by rank.

    Parameters
    ----------
    values : float32[sum(parts), n_columns]
        Each rank holds its share of every part.
    parts : tuple of int
        Rows of each part in the whole matrix.
    n_ranks : int
    """
    ranks = values.reshape(n_ranks, -1, values.shape[1])
    ends = np.cumsum([0, *(part // n_ranks for part in parts)])
    regrouped = [ranks[:, begin:end].reshape(-1, values.shape[1]) for begin, end in pairwise(ends)]
    return np.concatenate(regrouped)
