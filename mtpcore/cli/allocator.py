"""What glibc's allocator does in a program that runs for weeks."""

from __future__ import annotations

import ctypes

__all__ = ["keep_flat"]

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3  # M_ARENA_MAX and M_MMAP_THRESHOLD of malloc.h
_LARGE = 128 << 10


def keep_flat() -> bool:
    """Let all threads share one heap, and give large blocks back as they are freed.

    glibc makes a heap for each thread that finds another busy, and none of them shrinks: with what
    is in use unchanged, a server's memory goes on growing as blocks of requests move from one heap
    to the next. Python's threads take turns anyway, and kernels allocate nothing as they run. The
    threshold of large blocks is named because glibc raises it otherwise, to what was freed last.

    Returns
    -------
    bool
        Whether the allocator is one that has such settings; others are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return all(mallopt(*setting) for setting in ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _LARGE)))
