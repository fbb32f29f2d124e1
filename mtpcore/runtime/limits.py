"""Checks of a context's sizes."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from mtpcore.boundary.arguments import Length, one_of, read
from mtpcore.errors import CapacityError
from mtpcore.memory.types import KV_DTYPES

__all__ = ["Sizes", "read_sizes"]


class Sizes(Struct, frozen=True):
    """Places of a sequence, sequences, rows that run at once, threads, type of keys and values.

    ``checkpoint_bytes`` of recurrent layers, of all sequences together; None: a few of each.
    """

    n_ctx: int
    n_seq_max: int
    n_batch: int
    threads: int
    kv_dtype: str
    checkpoint_bytes: int | None


def read_sizes(
    n_ctx: int,
    n_seq_max: int,
    n_batch: int,
    threads: int,
    kv_dtype: str,
    checkpoint_bytes: int | None,
) -> Sizes:
    """Return sizes of a context; raise CapacityError, naming it, where one is none."""
    return Sizes(
        _read("n_ctx", n_ctx, _upto(1 << 24)),
        _read("n_seq_max", n_seq_max, _upto(1 << 16)),
        _read("n_batch", n_batch, _upto(1 << 16)),
        _read("threads", threads, _upto(1024)),
        _read("kv_dtype", kv_dtype, one_of(*KV_DTYPES), "unknown type of keys and values"),
        _read("checkpoint_bytes", checkpoint_bytes, _BYTES),
    )


_BYTES = Annotated[Length | None, Meta(description="a number of bytes, or None")]


def _upto(most: int) -> Any:
    return Annotated[int, Meta(ge=1, le=most, description=f"an int in 1..{most}")]


def _read(name: str, value: object, kind: Any, what: str = "size out of range") -> Any:
    return read(value, kind, what, where=f"Context({name}=...)", error=CapacityError)
