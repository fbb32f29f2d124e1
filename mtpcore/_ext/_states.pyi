"""States of recurrent layers as kernels store them, settled: after the rows of their log."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

def delta_sizes(layer: Any) -> tuple[int, int]:
    """Return how many float32 a base of a ``DeltaLayer`` takes, and a row of its log.

    Raises
    ------
    BackendError
        No layer has such heads and widths.
    """

def settle_delta(
    layer: Any, base: F32, log: F32, rows: NDArray[np.int32], rates: F32 | None = None
) -> F32:
    """Return the state after a base and rows of a log, float32[n_heads, k_width, v_width].

    Parameters
    ----------
    layer : DeltaLayer
    base : float32[n]
        As ``c/recurrent/states.h`` describes it.
    log : float32[n_rows, n]
    rows : int32[n]
        Of the log, in the order of their places.
    rates : float32[n], optional
        Those of the layer, if it has some, in the layout of its base.

    Raises
    ------
    BackendError
        No layer has such heads and widths, the base or the rates are another layer's, or there is
        no such row.
    """
