"""Rows of a file, written in the order in which the kernels read them."""

from __future__ import annotations

from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type

from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.products import DeviceMatrix
from mtpcore.backends.cuda.launch.step import Launch, blocks_of
from mtpcore.backends.cuda.layout import FORMATS, TILE

__all__ = ["KERNELS", "PACK", "pack"]

PACK = {
    kind: Kernel(
        "pack",
        (
            *layout.defines(),
            *layout.defines_of_blocks(),
            ("BYTES", str(GGML_QUANT_SIZES[Type(kind)][1])),
        ),
    )
    for kind, layout in FORMATS.items()
}
"""The kernel for each type of blocks."""

KERNELS = tuple(PACK.values())


def pack(raw: DeviceArray, matrix: DeviceMatrix, first_tile: int, n_rows: int) -> Launch:
    """Write rows to the planes of a quantised matrix, or of a stack, as ``layout.pack`` has them.

    Parameters
    ----------
    raw : DeviceArray
        The rows' bytes in the file, from its beginning on.
    matrix : DeviceMatrix
    first_tile : int
        Tile of the matrix, or of all in the stack, that the first row begins.
    n_rows : int
        Rows of one matrix, or all rows of several.
    """
    of_matrix = min(n_rows, matrix.n_rows)
    n_tiles = n_rows // of_matrix * -(-of_matrix // TILE)
    kernel = PACK[matrix.type]
    arguments = kernel.arguments(
        raw=raw,
        low=matrix.low,
        high=matrix.high,
        factors=matrix.factors,
        scales=matrix.scales,
        n_rows=of_matrix,
        n_blocks=matrix.n_cols // FORMATS[matrix.type].block,
        n_tiles=n_tiles,
        first_tile=first_tile,
    )
    return Launch(kernel, (blocks_of(n_tiles * matrix.n_cols),), arguments)
