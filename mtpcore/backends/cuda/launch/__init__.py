"""Which kernel launches compute each operation.

A launcher is a plain function of sizes and arrays, so that it can be checked, and run, without a
GPU. A test holds that no operation of the table is missing.
"""

from mtpcore.backends.cuda.launch import (
    attention,
    blocks,
    codes,
    embedding,
    pack,
    passes,
    products,
    recurrent,
    rows,
    tokens,
    trees,
)

__all__ = ["KERNELS", "LAUNCHERS"]

LAUNCHERS = {
    **rows.LAUNCHERS,
    **embedding.LAUNCHERS,
    **products.LAUNCHERS,
    **attention.LAUNCHERS,
    **recurrent.LAUNCHERS,
    **blocks.LAUNCHERS,
}

KERNELS = (
    *rows.KERNELS,
    *embedding.KERNELS,
    *codes.KERNELS,
    *products.KERNELS,
    *attention.KERNELS,
    *recurrent.KERNELS,
    *blocks.KERNELS,
    *tokens.KERNELS,
    *passes.KERNELS,
    *pack.KERNELS,
    *trees.KERNELS,
)
