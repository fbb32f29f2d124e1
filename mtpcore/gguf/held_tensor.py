"""Tensors whose values are in memory, made of those of a file."""

from __future__ import annotations

from typing import Self

import numpy as np

from mtpcore.gguf.tensor import Tensor
from mtpcore.gguf.types import F32

__all__ = ["HeldTensor"]


class HeldTensor(Tensor):
    """Values under a name, as float32; ``origin`` is a tensor of the file that they come from.

    Its path is the origin's.
    """

    __slots__ = ("_blocks",)

    def __init__(self, name: str, values: np.ndarray, origin: Tensor) -> None:
        self.name, self.type, self.shape = name, F32, values.shape
        self._hold(np.ascontiguousarray(values, np.float32).view(np.uint8), origin)

    @classmethod
    def of_blocks(cls, blocks: np.ndarray, origin: Tensor) -> Self:
        """Return a tensor of the origin's name, type and shape with other blocks."""
        held = cls.__new__(cls)
        held.name, held.type, held.shape = origin.name, origin.type, origin.shape
        held._hold(blocks.reshape(*origin.shape[:-1], -1), origin)
        return held

    def _hold(self, blocks: np.ndarray, origin: Tensor) -> None:
        blocks.setflags(write=False)
        self._blocks, self.n_bytes = blocks, blocks.nbytes
        self._begin, self._file = origin._begin, origin._file

    @property
    def offset(self) -> int | None:
        """None: its bytes are a copy."""
        return None

    def raw(self) -> np.ndarray:
        """Return uint8[*shape[:-1], row_bytes]."""
        return self._blocks

    def release(self, begin: int = 0, end: int | None = None) -> None:
        """Do nothing: no file is read."""
