"""The processors on which this process may run."""

from __future__ import annotations

import os
import sys

__all__ = ["count_processors"]


def count_processors() -> int:
    """Return how many there are; only Linux says which of the machine's are ours."""
    if sys.platform == "linux" and hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
