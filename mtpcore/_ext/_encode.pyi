"""Values as blocks of a weight type."""

import numpy as np
from numpy.typing import NDArray

def encodes(type: int) -> bool:
    """Say whether values can be encoded as a type."""

def encode(
    values: NDArray[np.float32], type: int, importance: NDArray[np.float32] | None = None
) -> NDArray[np.uint8]:
    """Return rows of blocks, the bytes that llama.cpp's quantiser writes on x86-64.

    Parameters
    ----------
    values : float32 [n_rows, n_cols]
        Finite, whole blocks a row.
    type : int
        Type id, one that ``encodes``.
    importance : float32 [n_cols], optional
        Finite weights of the columns' errors. Where they are given, most types are searched in
        another way.

    Returns
    -------
    uint8 [n_rows, row_bytes]

    Raises
    ------
    ValueError
        If something does not fit.
    """
