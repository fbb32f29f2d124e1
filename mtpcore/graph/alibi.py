"""Slopes of attention with linear biases.

Press, Smith, Lewis 2021, "Train short, test long: attention with linear biases enables input length
extrapolation": a score loses its head's slope for each place between row and key.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["alibi_slopes"]


def alibi_slopes(n_heads: int, max_bias: float) -> NDArray[np.float32]:
    """Return the slope of each query head: float32[n_heads], all above 0.

    Parameters
    ----------
    n_heads : int
        Where it is a power of two, slopes are a geometric sequence down to 2^-max_bias. Else the
        largest such number of heads has that one, and the others have every second slope of the
        sequence for twice as many.
    max_bias : float
        Above 0; 8 in the paper.
    """
    whole = 1 << n_heads.bit_length() - 1
    exponents = [max_bias * (head + 1) / whole for head in range(whole)]
    exponents += [max_bias / 2 * (2 * head + 1) / whole for head in range(n_heads - whole)]
    return (2.0 ** -np.array(exponents)).astype(np.float32)
