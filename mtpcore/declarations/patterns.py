"""Patterns of names, as declarations spell them."""

from __future__ import annotations

import re
from functools import cache

__all__ = ["pattern"]


@cache
def pattern(name: str) -> re.Pattern[str]:
    """Return what a declared name matches; its number of a block or head is group ``n`` or ``i``.

    A ``*`` stands for anything.
    """
    parts = re.split(r"\{([nie])\}", name)
    spelled, used = "", set()
    for at, part in enumerate(parts):
        if at % 2 == 0:
            spelled += re.escape(part).replace(r"\*", ".*")
        else:
            spelled += r"\d{1,6}" if part in used else rf"(?P<{part}>\d{{1,6}})"
            used.add(part)
    return re.compile(spelled)
