"""Tensors whose values are in memory, made of those of a file."""

from __future__ import annotations

import numpy as np

from mtpcore.gguf.tensor import Tensor
from mtpcore.gguf.types import F32

__all__ = ["HeldTensor"]


class HeldTensor(Tensor):
    """Values float32[shape] under a name; ``origin`` is a tensor of the file that they come from.

    Its path is the origin's.
    """

    __slots__ = ("_values_held",)

    def __init__(self, name: str, values: np.ndarray, origin: Tensor) -> None:
        self.name, self.type, self.shape = name, F32, values.shape
        self.n_bytes, self._begin, self._file = values.nbytes, origin._begin, origin._file
        held = np.ascontiguousarray(values, np.float32).view(np.uint8)
        held.setflags(write=False)
        self._values_held = held

    @property
    def offset(self) -> int | None:
        """None: its bytes are a copy."""
        return None

    def raw(self) -> np.ndarray:
        """Return uint8[*shape[:-1], row_bytes]."""
        return self._values_held

    def release(self, begin: int = 0, end: int | None = None) -> None:
        """Do nothing: no file is read."""
