"""How large a number from outside may be before it becomes a loop, a list or an allocation."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

__all__ = ["Count", "Depth"]

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
"""A size: at least one, and small enough that a list with that many entries does no harm."""

Depth: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 10)]
"""A number of blocks: each costs a plan something even where its tensors are tiny."""
