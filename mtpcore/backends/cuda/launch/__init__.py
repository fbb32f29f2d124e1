"""Which kernel launches compute each operation.

A launcher is a plain function of sizes and arrays, so that it can be checked, and run, without a
GPU. An operation that is not in ``LAUNCHERS`` has no kernel yet.
"""

from mtpcore.backends.cuda.launch import products, rows, tokens

__all__ = ["KERNELS", "LAUNCHERS"]

LAUNCHERS = {**rows.LAUNCHERS, **products.LAUNCHERS}

KERNELS = (*rows.KERNELS, *products.KERNELS, *tokens.KERNELS)
