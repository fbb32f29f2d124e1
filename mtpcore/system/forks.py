"""What a forked child does first."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

__all__ = ["after_forks"]


def after_forks(in_child: Callable[[], object]) -> None:
    """Call a function in every child that is forked from now on; Windows forks none."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=in_child)
