"""The one operation that NumPy lacks: a b + c, rounded once to float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext import _fma

__all__ = ["F32", "fma"]

F32 = NDArray[np.float32]


def fma(a: Any, b: Any, c: Any) -> F32:
    """Return a b + c of float32 values, rounded once to the nearest float32, ties to even.

    C's ``fmaf``, value after value. Written with NumPy's own operations it would take ten times as
    long, and most of what the definition takes; tests hold it against exact fractions.
    """
    parts = np.nditer(
        [a, b, c, None],
        ["external_loop", "buffered", "zerosize_ok"],
        [["readonly"], ["readonly"], ["readonly"], ["writeonly", "allocate"]],
        op_dtypes=[np.float32, np.float32, np.float32, np.float32],
        order="C",
        casting="safe",
    )
    with parts:
        for x, y, z, rounded in parts:
            _fma.fma(x, y, z, rounded)
        made: F32 = parts.operands[3]
    return made
