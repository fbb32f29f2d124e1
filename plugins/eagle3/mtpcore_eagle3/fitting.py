"""How an EAGLE-3 head is fitted to a target."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtpcore.plugin import begin_fused_head, fused_head_entries
from mtpcore.plugin import draft_fused_head as draft
from mtpcore.plugin import fused_head_taps as taps
from mtpcore.plugin import scale_fused_head as scaled

__all__ = ["ARCHITECTURE", "begin", "draft", "metadata", "scaled", "taps"]

F32 = NDArray[np.float32]

ARCHITECTURE = "eagle3"


def metadata(target: Any, depth: int) -> dict[str, Any]:
    """Return the entries of the head's file; it may draft more in a row than it learned."""
    return fused_head_entries(target, ARCHITECTURE)


def begin(
    target: Any,
    embeddings: F32,
    output: F32,
    sample: Callable[[], Iterator[tuple[F32, F32, F32]]],
    seed: int,
    depth: int,
) -> dict[str, F32]:
    """Return the weights before the first step, which are those of every draft."""
    return begin_fused_head(target, embeddings, output, sample, seed)
