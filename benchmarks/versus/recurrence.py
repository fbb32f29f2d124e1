"""What recurrent layers cost: their share of a token, and the bytes that their states take."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import mtpcore
from mtpcore.discovery import loading
from mtpcore.graph import GraphBuilder
from versus.ours import Ours

__all__ = ["memory_kept", "without_recurrence"]


def without_recurrence(path: Path, n_ctx: int, threads: int) -> Ours:
    """Return an engine whose layers leave out convolution and delta rule.

    All else is computed, also what only the delta rule reads. Its texts mean nothing.
    """

    def convolve(self: GraphBuilder, x: Any, *arguments: Any, **options: Any) -> Any:
        return x

    def update(self: GraphBuilder, q: Any, k: Any, v: Any, *arguments: Any, **options: Any) -> Any:
        return v

    with (
        patch.object(GraphBuilder, "causal_conv", convolve),
        patch.object(GraphBuilder, "delta_rule", update),
        patch.object(loading, "account"),  # what is left out reads tensors that nothing else does
    ):
        engine = Ours(mtpcore.load_model(path, mtp=False), n_ctx, threads)
        engine.process([5])
    engine.rewind(0)
    return engine


def memory_kept(context: mtpcore.Context) -> dict[str, float]:
    """Return the MiB of a checkpoint and of a row in a log, where a context has any."""
    memory = context.runner.memory
    recurrent = getattr(memory, "recurrent", None)
    if recurrent is None:
        return {}
    store = recurrent.store
    return {"checkpoint_mib": store.base_bytes / 2**20, "log_row_mib": store.row_bytes / 2**20}
