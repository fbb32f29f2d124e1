"""Memory of contexts: zeros that begin on a cache line."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtpcore.errors import CapacityError

__all__ = ["LINE", "zeros_on_a_line"]

LINE = 64
"""Bytes of a cache line."""


def zeros_on_a_line(n_bytes: int, what: str, fix: str) -> NDArray[np.uint8]:
    """Return uint8[n_bytes]; the system grants a page of it when it is first written.

    Raises
    ------
    CapacityError
        There is no memory for ``what`` it is to hold; says how to ``fix`` that.
    """
    try:
        memory = np.zeros(n_bytes + 2 * LINE, np.uint8)
    except MemoryError as error:
        raise CapacityError(f"no memory for {what}", wanted=f"{n_bytes} bytes", fix=fix) from error
    begin = -memory.ctypes.data % LINE
    return memory[begin : begin + n_bytes]
