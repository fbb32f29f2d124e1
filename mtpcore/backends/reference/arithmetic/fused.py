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
    operands = np.asarray(a), np.asarray(b), np.asarray(c)
    made = np.empty(np.broadcast(*operands).shape, np.float32)
    _fma.fma(*operands, made)
    return made
