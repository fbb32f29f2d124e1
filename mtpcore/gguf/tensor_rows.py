"""Some rows of a tensor, as a tensor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtpcore.gguf.tensor import Tensor

__all__ = ["TensorRows"]


class TensorRows(Tensor):
    """Rows ``rows`` int[n] of a tensor, in that order, or entries of a vector; a copy of them."""

    __slots__ = ("_blocks",)

    def __init__(self, name: str, whole: Tensor, rows: NDArray[np.integer]) -> None:
        self.name, self.type = name, whole.type
        self.shape = (len(rows), *whole.shape[1:])
        self._begin, self._file = whole._begin, whole._file
        blocks = whole.raw().reshape(whole.shape[0], -1)[rows]
        self.n_bytes = blocks.size
        self._blocks: np.ndarray = blocks.reshape(*self.shape[:-1], -1)

    @property
    def offset(self) -> int | None:
        """None: its bytes are a copy."""
        return None

    def raw(self) -> np.ndarray:
        """Return uint8[*shape[:-1], row_bytes]."""
        return self._blocks

    def release(self, begin: int = 0, end: int | None = None) -> None:
        """Do nothing: the file is not read again."""
