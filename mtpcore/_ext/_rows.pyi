"""The rows of ordinary batches: read, checked, placed and sorted by sequence in one pass."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
Bools = NDArray[np.bool_]

def list_as_int32(values: list[int]) -> I32 | None:
    """Return numbers as int32[n], n above 0; None where one is no plain int or needs more bits."""

def columns_of_chain(
    tokens: Any, seq: Any, pos: Any, outputs: Any
) -> tuple[I32, I32, I32, Bools] | None:
    """Return the columns of a batch of one sequence's tokens; None where anything is not plain.

    That is: ``tokens`` a list of plain ints, ``seq`` and ``pos`` plain ints, and ``outputs``
    "all", "last" or "none". They are those of ``mtpcore.runtime.batch.Batch``.
    """

def place_rows(
    tokens: I32,
    seq: I32,
    pos: I32,
    outputs: Bools,
    lengths: list[int],
    n_vocab: int,
    n_ctx: int,
    begins_anywhere: bool,
) -> tuple[I32, dict[int, tuple[int, int]], dict[int, NDArray[np.intp]], I32] | None:
    """Place the rows of chains of tokens; None where a row does not fit or is no token.

    What ``mtpcore.runtime.admission`` finds for such rows; it looks closer where this returns None.

    Parameters
    ----------
    tokens, seq, pos : int32[n]
        Tokens, sequences and positions.
    outputs : bool[n]
        Whether logits are wanted.
    lengths : list of int, one for each sequence
        Where each sequence goes on.
    n_vocab, n_ctx : int
    begins_anywhere : bool
        Whether an empty sequence may begin at any place.

    Returns
    -------
    (int32[n], dict, dict, int32[n_outputs]) or None
        Place of each row; the places of each sequence as (begin, end); the rows of each
        sequence; the rows whose logits are wanted.
    """
