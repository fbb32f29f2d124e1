"""How many threads the machine grants this process."""

from __future__ import annotations

import os
from pathlib import Path

from mtpcore._ext._plan import MAX_THREADS

__all__ = ["default_threads"]

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def default_threads() -> int:
    """Return the cores this process may run on, at most what its control group pays for."""
    affinity = getattr(os, "sched_getaffinity", None)
    n = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text().split()
        n = min(n, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no control group, or no limit ("max")
    return min(n, MAX_THREADS)
