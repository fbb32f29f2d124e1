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
    a, b, c : NDArray[np.float32]
        Of shapes that broadcast to the result's, with any strides.
    result : NDArray[np.float32]
        C-contiguous, with at most 16 axes.

    Raises
    ------
    TypeError
        Something is no array of float32, or has too many axes.
    IndexError
        A shape does not broadcast to the result's.
    ValueError
        The result may not be written, or is not C-contiguous.
    """
