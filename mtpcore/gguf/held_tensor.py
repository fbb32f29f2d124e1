"""Tensors whose values are in memory, made of those of a file."""

from __future__ import annotations

from typing import Self

import numpy as np

from mtpcore.gguf.tensor import Tensor
from mtpcore.gguf.types import BF16, F16, F32

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

    @classmethod
    def smallest(cls, name: str, values: np.ndarray, origin: Tensor) -> Self:
        """Return a tensor of values in the smallest type of floats that holds each of them.

        Products by it have the bits that they have by float32.
        """
        held = cls(name, values, origin)
        values = np.ascontiguousarray(values, np.float32)
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        bits = values.view(np.uint32)
        if np.array_equal(half.astype(np.float32), values):
            held.type = F16
            held._hold(half.view(np.uint8), origin)
        elif not (bits & 0xFFFF).any():
            held.type = BF16
            held._hold((bits >> 16).astype(np.uint16).view(np.uint8), origin)
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
