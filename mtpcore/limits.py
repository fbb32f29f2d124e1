"""What a context may be made of."""

from __future__ import annotations

from os import PathLike

from mtpcore.errors import BatchError, CapacityError
from mtpcore.memory.types import KV_DTYPES

__all__ = ["check_model", "check_sizes"]


def check_model(model: object) -> None:
    """Raise BatchError where a path stands in a model's place."""
    if isinstance(model, (str, PathLike)):
        raise BatchError(
            "a context takes a model",
            where="Context(model)",
            wanted="Model",
            got=type(model).__name__,
            fix="load it: Context(load_model(path))",
        )


def check_sizes(
    n_ctx: int, n_seq_max: int, n_batch: int, threads: int | None, kv_dtype: str
) -> None:
    """Raise CapacityError where a setting of a context is none, naming it."""
    for name, value, most in (
        ("n_ctx", n_ctx, 1 << 24),
        ("n_seq_max", n_seq_max, 1 << 16),
        ("n_batch", n_batch, 1 << 16),
        ("threads", 1 if threads is None else threads, 1024),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise CapacityError(
                "size out of range",
                where=f"Context({name}=...)",
                wanted=f"an int in 1..{most}",
                got=repr(value),
            )
    if kv_dtype not in KV_DTYPES:
        raise CapacityError(
            "unknown type of keys and values",
            where="Context(kv_dtype=...)",
            wanted=", ".join(KV_DTYPES),
            got=repr(kv_dtype),
        )
