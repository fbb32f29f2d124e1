"""What the threads of this process are executing."""

from __future__ import annotations

import gc
import sys
from types import FrameType

__all__ = ["newest_frames"]


def newest_frames() -> dict[int, FrameType]:
    """Return the newest frame of each thread, by the thread's ident.

    No garbage is collected meanwhile. The call holds a lock of the interpreter; what a collection
    runs can let in another thread, and one that starts or ends a thread then waits for that lock
    for ever, with the GIL (https://github.com/python/cpython/issues/106883, open in 3.11).
    """
    was_enabled = gc.isenabled()
    try:
        gc.disable()  # within the block: an interrupt right after it would leave it so
        return sys._current_frames()
    finally:
        if was_enabled:
            gc.enable()
