"""Arrays of other libraries, which speak DLPack: on the host, and rows on a device."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mtpcore._ext._dlpack import Taken
from mtpcore.errors import BatchError, spell

__all__ = ["AS_FLOAT32", "HOST", "ForeignRows", "SupportsDLPack", "is_elsewhere", "to_host"]

AS_FLOAT32 = (
    "pass float32 on the host; of a torch tensor (bfloat16, on a device) rows.float().cpu()"
)

HOST = (1, 0)
"""The host among DLPack's devices."""
_READABLE = (1, 3, 11, 13)
"""Kinds of memory that the host reads: its own, pinned for CUDA or ROCm, managed by CUDA."""
_FLOAT = 2


class SupportsDLPack(Protocol):
    """An array of another library."""

    def __dlpack__(self) -> object:
        """Return the capsule."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return kind and number of the device."""


def is_elsewhere(values: Any) -> bool:
    """Say whether an object is an array of another library in memory that the host cannot read."""
    if isinstance(values, np.ndarray) or not hasattr(values, "__dlpack_device__"):
        return False
    return int(values.__dlpack_device__()[0]) not in _READABLE


def to_host(values: Any) -> NDArray[Any]:
    """Return an array of another library; from a device its library brings it, where it can."""
    if is_elsewhere(values):
        return np.asarray(np.from_dlpack(values, device="cpu"))
    return np.asarray(np.from_dlpack(values))


class ForeignRows:
    """Rows float32[n, width] that another library keeps on a device; nobody has read them yet.

    A backend of that device takes them as they are. For every other one they come home, as by
    ``np.asarray``.

    Parameters
    ----------
    source : SupportsDLPack
        A C-contiguous array.
    what : str
        What the rows are, for messages.

    Raises
    ------
    BatchError
        Another type, or gaps between values.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, source: Any, what: str) -> None:
        self._source, self._what = source, what
        self._shape: tuple[int, ...] | None = None
        taken = self.take(None)  # to look at its shape; -1, not to wait, is not known to all
        self._shape, self.device = taken.shape, taken.device

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, and values of each."""
        assert self._shape is not None
        return self._shape

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, stream: int | None) -> Taken:
        """Return the rows in their memory, for work in a ``stream``, which waits for them.

        They are its library's again when what is returned is gone.

        Raises
        ------
        BatchError
            They are no longer what they were, or their library refuses.
        """
        try:
            taken = Taken(_capsule(self._source, stream))
        except MemoryError:
            raise
        except Exception as error:  # whatever a caller's object raises
            raise BatchError(
                f"{self._what} are no array of numbers", got=spell(error, str), fix=AS_FLOAT32
            ) from None
        if (taken.code, taken.bits, taken.lanes) != (_FLOAT, 32, 1):
            raise BatchError(
                f"{self._what} on a device are float32",
                got=f"type {taken.code} of {taken.bits} bits, as DLPack counts them",
                fix="of a torch tensor rows.float()",
            )
        if not _is_contiguous(taken.shape, taken.strides):
            raise BatchError(
                f"{self._what} on a device are C-contiguous",
                got=f"strides {taken.strides} of shape {taken.shape}",
                fix="of a torch tensor rows.contiguous()",
            )
        if self._shape is None:
            return taken
        for name, wanted, got in (
            ("shape", self._shape, taken.shape),
            ("device", self.device, taken.device),
        ):
            if wanted != got:
                raise BatchError(
                    f"{self._what} have another {name} than before", wanted=wanted, got=got
                )
        return taken

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        try:
            values = to_host(self._source)
        except MemoryError:
            raise
        except Exception as error:  # whatever a caller's object raises
            raise BatchError(
                f"{self._what} are on another device, and their library does not bring them",
                got=spell(error, str),
                fix=AS_FLOAT32,
            ) from None
        if values.shape != self.shape:
            raise BatchError(
                f"{self._what} have another shape than before", wanted=self.shape, got=values.shape
            )
        return values.astype(self.dtype if dtype is None else dtype, copy=bool(copy))


def _capsule(source: Any, stream: int | None) -> object:
    """Ask for a capsule of DLPack 1; older libraries know one argument."""
    try:
        return source.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:
        return source.__dlpack__(stream=stream)


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Say whether values follow each other, the last axis first; an axis of one has any stride."""
    if strides is None or math.prod(shape) == 0:
        return True
    wanted = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != wanted:
            return False
        wanted *= size
    return True
