"""How far logits differ from those of exact weights in float64, in both engines."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import mtpcore
from mtpcore.backends.reference import ReferenceBackend
from versus.cells import Arena
from versus.results import Found

__all__ = ["measure_error"]

N_TOKENS, N_TEXTS = 240, 7


def measure_error(name: str, path: Path, threads: int, *, peer: bool = True) -> Found:
    """Return each engine's RMS error over the deviation of the true logits, in place of times.

    One figure for each of several texts of random tokens: which way last bits fall, and which of
    two nearly equal experts a row meets, changes a text's error by more than engines differ.
    """
    arena = Arena(name, path, threads, peer=peer)
    ours: list[float] = []
    theirs: dict[str, list[float]] = {setting: [] for setting in arena.theirs}
    for seed in range(N_TEXTS):
        rng = np.random.default_rng(seed)
        text = rng.integers(3, arena.model.hparams.n_vocab, N_TOKENS).tolist()
        exact = mtpcore.Context(
            arena.model, N_TOKENS, kv_dtype="f32", backend=ReferenceBackend("f64")
        )
        true = exact.process(mtpcore.Batch.of(text, outputs="all")).logits.astype(np.float64)
        for engine, found in zip(arena.engines, (ours, *theirs.values()), strict=True):
            engine.rewind(0)
            made = engine.process(text, every=True)
            found.append(float(np.sqrt(np.mean((made - true) ** 2)) / true.std()))
    arena.close()
    return Found(name, "accuracy", N_TOKENS, ours, theirs)
