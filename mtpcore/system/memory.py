"""Memory of this process, and of the files that it has mapped."""

from __future__ import annotations

import mmap
import sys

__all__ = ["give_back", "peak_bytes"]

_MAPPED_TOGETHER = 1 << 21  # bytes: touching a page maps its neighbours, too, where they are cached

if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    class _Counters(ctypes.Structure):
        """``PROCESS_MEMORY_COUNTERS``."""

        _fields_ = [
            ("cb", wintypes.DWORD),
            ("PageFaultCount", wintypes.DWORD),
            ("PeakWorkingSetSize", ctypes.c_size_t),
            ("WorkingSetSize", ctypes.c_size_t),
            ("QuotaPeakPagedPoolUsage", ctypes.c_size_t),
            ("QuotaPagedPoolUsage", ctypes.c_size_t),
            ("QuotaPeakNonPagedPoolUsage", ctypes.c_size_t),
            ("QuotaNonPagedPoolUsage", ctypes.c_size_t),
            ("PagefileUsage", ctypes.c_size_t),
            ("PeakPagefileUsage", ctypes.c_size_t),
        ]

    def peak_bytes() -> int | None:
        """Return the most memory that this process had so far; None where that is not told."""
        kernel = ctypes.WinDLL("kernel32")
        kernel.GetCurrentProcess.restype = wintypes.HANDLE
        process, counters = wintypes.HANDLE(kernel.GetCurrentProcess()), _Counters()
        counters.cb = ctypes.sizeof(counters)
        told = kernel.K32GetProcessMemoryInfo(process, ctypes.byref(counters), counters.cb)
        return int(counters.PeakWorkingSetSize) if told else None

    def give_back(mapped: mmap.mmap, begin: int, n_bytes: int) -> None:
        """Do nothing: Windows takes pages back by itself when it needs them."""
else:
    import resource

    def peak_bytes() -> int | None:
        """Return the most memory that this process had so far; None where that is not told."""
        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def give_back(mapped: mmap.mmap, begin: int, n_bytes: int) -> None:
        """Let the system take back the pages of these bytes; they are read again when needed."""
        first = max(begin - _MAPPED_TOGETHER, 0) // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, first, begin + n_bytes - first)
