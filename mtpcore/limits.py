"""How large a context may be."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from mtpcore.arguments import one_of, read
from mtpcore.errors import CapacityError
from mtpcore.memory.types import KV_DTYPES

__all__ = ["read_sizes"]


def _upto(most: int) -> Any:
    return Annotated[int, Meta(ge=1, le=most, description=f"an int in 1..{most}")]


_KINDS = {
    "n_ctx": _upto(1 << 24),
    "n_seq_max": _upto(1 << 16),
    "n_batch": _upto(1 << 16),
    "threads": _upto(1024),
    "kv_dtype": one_of(*KV_DTYPES),
}


def read_sizes(**given: Any) -> list[Any]:
    """Return settings of a context, checked; raise CapacityError, naming it, where one is none."""
    return [
        read(
            value,
            _KINDS[name],
            "unknown type of keys and values" if name == "kv_dtype" else "size out of range",
            where=f"Context({name}=...)",
            error=CapacityError,
        )
        for name, value in given.items()
    ]
