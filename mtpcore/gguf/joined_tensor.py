"""Tensors one after the other, as one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mtpcore.gguf.tensor import Tensor
from mtpcore.gguf.types import F32

__all__ = ["JoinedTensor"]


class JoinedTensor(Tensor):
    """The rows of several tensors, [rows, width]: a copy, made when it is first asked for.

    It has their type, or F32 where they have several.
    """

    __slots__ = ("_blocks", "_parts")

    def __init__(self, name: str, parts: Sequence[Tensor]) -> None:
        types = {part.type for part in parts}
        self.name, self.type = name, parts[0].type if len(types) == 1 else F32
        self.shape = (sum(part.n_rows for part in parts), parts[0].shape[-1])
        self._begin, self._file = parts[0]._begin, parts[0]._file
        self._parts = (*parts,)
        self._blocks: np.ndarray | None = None
        row_bytes = parts[0].row_bytes if len(types) == 1 else 4 * self.shape[1]
        self.n_bytes = self.shape[0] * row_bytes

    @property
    def offset(self) -> int | None:
        """None: its bytes are a copy."""
        return None

    def raw(self) -> np.ndarray:
        """Return uint8[rows, row_bytes]."""
        if self._blocks is None:
            parts = [
                part.raw() if part.type == self.type else part.array().view(np.uint8)
                for part in self._parts
            ]
            self._blocks = np.concatenate([part.reshape(-1, self.row_bytes) for part in parts])
        return self._blocks

    def release(self, begin: int = 0, end: int | None = None) -> None:
        """Do nothing: the files are not read again."""
