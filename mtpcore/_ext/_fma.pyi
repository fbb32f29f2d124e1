"""Multiply-adds of arrays, each rounded once."""

import numpy as np
from numpy.typing import NDArray

def fma(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    c: NDArray[np.float32],
    result: NDArray[np.float32],
) -> None:
    """Write a b + c to ``result``, each value rounded once: C's ``fmaf``.

    Parameters
    ----------
    a, b, c, result : NDArray[np.float32], shape (n,)
        With any strides.

    Raises
    ------
    IndexError
        They are not equally long.
    """
