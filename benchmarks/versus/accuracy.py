"""How far logits are from those of exact weights in float64, in both engines."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import mtpcore
from mtpcore.backends.reference import ReferenceBackend
from versus.cells import Arena
from versus.results import Found

__all__ = ["measure_error"]

N_TOKENS = 240


def measure_error(name: str, path: Path, threads: int, *, peer: bool = True) -> Found:
    """Return each engine's RMS error over the deviation of the true logits, in place of times."""
    arena = Arena(name, path, threads, peer=peer)
    text = arena.text[:N_TOKENS]
    exact = mtpcore.Context(arena.model, len(text), kv_dtype="f32", backend=ReferenceBackend("f64"))
    true = exact.process(mtpcore.Batch.of(text, outputs="all")).logits.astype(np.float64)

    def error(engine: object) -> float:
        engine.rewind(0)  # type: ignore[attr-defined]
        made = engine.process(text, every=True)  # type: ignore[attr-defined]
        return float(np.sqrt(np.mean((made - true) ** 2)) / true.std())

    theirs = {setting: [error(one)] for setting, one in arena.theirs.items()}
    arena.close()
    return Found(name, "accuracy", N_TOKENS, [error(arena.ours)], theirs)
