"""Arrays from callers: integers, numbers and flags, checked before anything computes with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mtpcore._ext._rows import list_as_int32
from mtpcore.boundary.dlpack import AS_FLOAT32, ForeignRows, SupportsDLPack, is_elsewhere, to_host
from mtpcore.errors import BatchError, spell

__all__ = ["RowsLike", "SupportsDLPack", "flags", "integers", "is_integer", "numbers", "rows_of"]

RowsLike = ArrayLike | SupportsDLPack
"""Rows of numbers: what NumPy takes for an array, or an array of another library."""

F32 = NDArray[np.float32]
_MOST = 1 << 28


def is_integer(value: object) -> bool:
    """Say whether a value is an integer of Python or NumPy, and no bool."""
    return type(value) is int or (
        isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    )


def integers(values: RowsLike, what: str) -> NDArray[np.int32]:
    """Return a copy of ``values``, C-contiguous int32; raise BatchError where they are others."""
    given: Any = values
    if type(given) is list and (plain := list_as_int32(given)) is not None:
        return plain
    array = _array(values, f"{what} are no array of integers")
    if array.size == 0:
        return np.zeros(array.shape, np.int32)
    if array.dtype.kind not in "iu":
        got = array.dtype if array.dtype.kind in "bfc" else spell(values)
        raise BatchError(f"{what}: integers are wanted", got=got)
    low, high = int(array.min()), int(array.max())
    if low < -(2**31) or high >= 2**31:
        raise BatchError(f"{what} fit 32 bits", got=(low, high))
    return np.array(array, dtype=np.int32, order="C")  # a copy: its owner may write to it


def numbers(values: RowsLike, what: str) -> F32:
    """Return a copy of ``values`` (NumPy, or with DLPack) as C-contiguous float32 on the host."""
    array = _array(values, f"{what} are no array of numbers", fix=AS_FLOAT32)
    if array.dtype.kind not in "fiu":
        raise BatchError(f"{what} are numbers", got=array.dtype, fix=AS_FLOAT32)
    with np.errstate(over="ignore"):
        return np.array(array, dtype=np.float32, order="C")  # a copy: its owner may write to it


def rows_of(values: RowsLike, what: str) -> Any:
    """Return ``values`` as ``numbers`` does, or where they are on a device as ``ForeignRows``."""
    try:
        is_foreign = is_elsewhere(values)
    except MemoryError:
        raise
    except Exception as error:  # whatever a caller's object raises
        raise BatchError(f"{what} are no array of numbers", got=spell(error, str)) from None
    if not is_foreign:
        return numbers(values, what)
    found = ForeignRows(values, what)
    if math.prod(found.shape) > _MOST:
        raise BatchError(
            f"{what} are no array of numbers",
            wanted=f"at most {_MOST} numbers",
            got=found.shape,
        )
    return found


def flags(values: ArrayLike, n: int, what: str) -> NDArray[np.bool_]:
    """Return a copy of ``values``, bool[n]; raise BatchError where they are no such array."""
    array = _array(values, f"{what} are one bool a row")
    if array.shape == (n,) == (0,):
        return np.zeros(0, np.bool_)
    if array.dtype != np.bool_ or array.shape != (n,):
        got = f"{array.dtype} of shape {array.shape}"
        raise BatchError(f"{what} are one bool a row", wanted=(n,), got=got)
    return array.copy()


def _array(values: Any, refusal: str, fix: str = "") -> NDArray[Any]:
    """Return a caller's array of any type, as it is, if it is not too large to look at."""
    try:
        if not isinstance(values, np.ndarray) and hasattr(values, "__dlpack__"):
            values = to_host(values)
        if isinstance(values, Sequence) and len(values) > _MOST:  # NumPy would take all memory
            raise BatchError(refusal, wanted=f"at most {_MOST} numbers", got=len(values))
        array = np.asarray(values)
    except BatchError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # whatever a caller's object raises
        raise BatchError(refusal, got=spell(error, str), fix=fix) from None
    if array.size > _MOST:  # with strides of 0 it may be larger than memory
        raise BatchError(refusal, wanted=f"at most {_MOST} numbers", got=array.shape)
    return array
