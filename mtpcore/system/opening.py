"""Flags of ``os.open``, and whether something comes through a pipe."""

from __future__ import annotations

import os
import sys

__all__ = ["READING", "READING_AT_ONCE", "is_silent"]

if sys.platform == "win32":
    import ctypes
    import msvcrt
    import time

    READING = READING_AT_ONCE = os.O_RDONLY | os.O_BINARY

    def is_silent(descriptor: int, seconds: float) -> bool:
        """Say whether nothing comes through a pipe, nor its end, for so long."""
        kernel = ctypes.WinDLL("kernel32")
        pipe, n = ctypes.c_void_p(msvcrt.get_osfhandle(descriptor)), ctypes.c_ulong(0)
        end = time.monotonic() + seconds
        while kernel.PeekNamedPipe(pipe, None, 0, None, ctypes.byref(n), None) and not n.value:
            if time.monotonic() >= end:
                return True
            time.sleep(0.01)
        return False
else:
    import select

    READING = os.O_RDONLY
    READING_AT_ONCE = os.O_RDONLY | os.O_NONBLOCK
    """Without waiting for the writer of a pipe."""

    def is_silent(descriptor: int, seconds: float) -> bool:
        """Say whether nothing comes through a pipe, nor its end, for so long."""
        return not select.select([descriptor], [], [], seconds)[0]
