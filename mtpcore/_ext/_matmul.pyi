"""Packed weight matrices times token rows, by ``c/matmul/matmul.h``; checks its arguments."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "PackedMatrix",
    "PackedMemory",
    "activation_block",
    "is_native",
    "map_rows",
    "matmul",
    "pack",
    "packed_bytes",
]

def is_native(type: int) -> bool:
    """Tell whether matrices of this GGUF type can be packed and multiplied."""

def packed_bytes(type: int, n_rows: int, n_cols: int) -> int:
    """Return how many bytes a packed matrix takes.

    Raises
    ------
    GraphError
        The type has no kernels, or the columns do not fill whole blocks.
    """

class PackedMemory:
    """A block of memory that packed matrices lie in, one after the other.

    Large blocks lie in huge pages. A block lives as long as the last matrix in it.

    Raises
    ------
    CapacityError
        There is no memory.
    """

    def __init__(self, n_bytes: int) -> None: ...
    def take(self, type: int, n_rows: int, n_cols: int) -> PackedMatrix | None:
        """Return a matrix to be filled in the next bytes, None where it does not fit any more.

        Raises
        ------
        GraphError
            As `packed_bytes`.
        """

class PackedMatrix:
    """Weights as the kernels read them; once filled, immutable and safe to share.

    A mapped one leaves them where they are, in file layout, and has every group of 32 rows packed
    whenever it is multiplied: the same bits, slower with few token rows. One that was given
    ``read_rows`` is mapped until an ``Executor`` has packed all of its groups.
    """

    @property
    def type(self) -> int:
        """GGUF's number of the weight type."""

    @property
    def activation(self) -> int:
        """How the kernels want token rows: 0 float32, 1 int8 by 32 values, 2 int8 by 256."""

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns): outputs and inputs."""

    @property
    def is_mapped(self) -> bool:
        """Whether some weights are read in file layout, in memory that this object does not own."""

    @property
    def packed_share(self) -> float:
        """Share of the rows that are packed, 0 .. 1."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, packed or, where they stay there, as they lie in the file."""

    def fill(self, begin: int, data: bytes | memoryview | NDArray[Any]) -> None:
        """Pack rows in file layout, from row ``begin`` on; the GIL is released.

        Raises
        ------
        GraphError
            Not whole groups of 32 rows (but for the last), rows that the matrix does not have, or
            a mapped matrix.
        """

    def read_rows(self, data: bytes | memoryview | NDArray[Any], offset: int = -1) -> None:
        """Let a matrix that was not filled read its rows where they lie, until they are packed.

        Parameters
        ----------
        data : buffer
            All rows in file layout; kept until they are packed.
        offset : int
            Where the rows begin in a file that is mapped from its beginning: its pages are given
            back to the system as they are packed. Below 0 the rows lie in no file.

        Raises
        ------
        GraphError
            Not as many bytes as the matrix has, or a mapped matrix, or one that has read its rows.
        CapacityError
            There is no memory to note what is packed.
        """

    def row(self, index: int) -> NDArray[np.float32]:
        """Return one row as float32[n_cols] (an embedding lookup).

        Raises
        ------
        GraphError
            The matrix has no such row.
        """

def pack(
    data: bytes | memoryview | NDArray[Any], type: int, n_rows: int, n_cols: int
) -> PackedMatrix:
    """Pack a matrix from its bytes in a GGUF file.

    Parameters
    ----------
    data : buffer
        Contiguous rows in file layout, exactly as many bytes as the matrix has.
    type : int
        GGUF's type number; see `is_native`.
    n_rows, n_cols : int
        Outputs and inputs; whole blocks of the type in a row.

    Raises
    ------
    GraphError
        The type has no kernels, or sizes do not fit each other.
    CapacityError
        There is no memory for the packed weights.
    """

def map_rows(
    data: bytes | memoryview | NDArray[Any], type: int, n_rows: int, n_cols: int
) -> PackedMatrix:
    """Make a matrix of its bytes in a GGUF file, without copying them; it keeps ``data`` alive.

    Parameters and errors as `pack`; the bytes may be aligned to nothing.
    """

def activation_block(activation: int) -> int:
    """Return how many columns of activations are prepared together."""

def matmul(
    packed: PackedMatrix,
    x: ArrayLike,
    row_begin: int = 0,
    row_end: int | None = None,
    *,
    rows: ArrayLike | None = None,
    out: NDArray[np.float32] | None = None,
    out_rows: ArrayLike | None = None,
) -> NDArray[np.float32]:
    """Multiply token rows with rows [row_begin, row_end) of a matrix.

    The bits of a result depend on its token row and its weight row only. Activations are
    quantised to int8 for quantised weights (a scale per 32 values or per 256, as their blocks
    are). The GIL is released.

    Parameters
    ----------
    packed : PackedMatrix
        The weights.
    x : float32[n, n_cols]
        Token rows.
    row_begin, row_end : int, optional
        Multiples of 32; `row_end` may be the number of rows, its default.
    rows : int32[n_tokens], optional
        Which rows of `x` to take, in which order; all by default.
    out : float32[m, row_end - row_begin], optional
        Where results go; its rows may lie apart.
    out_rows : int32[n_tokens], optional
        The row of `out` for each token; in order by default.

    Returns
    -------
    float32[m, row_end - row_begin]
        `out`, or a new array of n_tokens rows.

    Raises
    ------
    GraphError
        Shapes, indices or the row range do not fit.
    """
