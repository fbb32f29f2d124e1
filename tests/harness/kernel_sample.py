"""As few CUDA kernels as have every source file, and every value that one is compiled for."""

import zlib

from mtpcore.backends.cuda.launch import KERNELS


def drawn(kernel):
    """Return a number that a kernel's text draws."""
    return zlib.crc32(f"{kernel}{kernel.source}".encode())


def sample(kernels=KERNELS):
    """Choose in an order that the kernels' texts draw: another text, perhaps another choice."""
    chosen, met = [], set()
    for kernel in sorted(kernels, key=drawn):
        values = {(kernel.name, value) for value in kernel.defines or (None,)}
        if not values <= met:
            chosen.append(kernel)
            met |= values
    return chosen
