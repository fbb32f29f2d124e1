"""The choice of tokens."""

from __future__ import annotations

import numpy as np

from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.step import Launch

__all__ = ["KERNELS", "choose"]

_ARGMAX = Kernel("argmax")
KERNELS = (_ARGMAX,)


def choose(logits: DeviceArray, ids: DeviceArray, n_rows: int) -> Launch:
    """Take each row's best id, as draft loops and greedy sampling do."""
    return Launch(_ARGMAX, (n_rows, 1), (logits, ids, np.int32(logits.shape[-1])))
