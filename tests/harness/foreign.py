"""Arrays as another library has them, which knows nothing of NumPy; on a device, if one wants."""

import numpy as np

from mtpcore._ext._dlpack import make_capsule

GPU = (2, 0)


class Foreign:
    """An array on a ``device``, whose memory is that of the host; it notes what it is asked for.

    A library ``brings`` rows to the host or not; an ``old`` one knows capsules before DLPack 1.
    """

    def __init__(self, values, device=GPU, *, brings=True, old=False):
        self.values, self.device, self.brings, self.old = values, device, brings, old
        self.asked = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        if self.old and options.keys() - {"stream"}:
            raise TypeError("unexpected keyword argument")
        self.asked.append(options)
        wanted = options.get("dl_device") or self.device
        if wanted != self.device and not self.brings:
            raise BufferError("cannot be exported to another device")
        values = self.values
        if not values.flags.c_contiguous:  # of these only NumPy makes capsules here
            return values.__dlpack__(max_version=(1, 0))
        return make_capsule(
            values,
            values.ctypes.data,
            values.shape,
            values.dtype.kind,
            8 * values.dtype.itemsize,
            wanted,
            versioned=not self.old,
            read_only=False,
            copied=False,
        )


def rows(n, width, seed=0):
    return np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32)
