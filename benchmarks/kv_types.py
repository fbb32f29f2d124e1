"""Print what each ``kv_dtype`` costs in accuracy: logits against float64.

    python benchmarks/kv_types.py demo --tokens 256

The definition in float64 (float activations, keys and values in float64) runs a text; the CPU runs
the same text with each ``kv_dtype``. The relative root mean square of the difference is printed.
With a quantised file the int8 activations contribute; F16 files show the KV cache alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import mtpcore
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.backends.reference.store import ReferenceStore
from mtpcore.graph.program import MemoryLayer
from mtpcore.memory import KV_DTYPES


class Exact(ReferenceBackend):
    """The definition in float64, with memory of float64 whatever is asked for."""

    def __init__(self) -> None:
        super().__init__("f64")

    def store(self, layers: Sequence[MemoryLayer], n_pages: int, dtype: str) -> ReferenceStore:
        """Make the pages."""
        return super().store(layers, n_pages, "f64")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=["demo"])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--text", default="benchmarks/kv_types.py", help="a file to read")
    options = parser.parse_args()
    for path in options.models:
        model = mtpcore.load_model(path)
        with open(options.text, encoding="utf-8") as file:
            tokens = model.tokenizer.encode(file.read())[: options.tokens]
        batch = mtpcore.Batch.of(tokens, outputs="all")

        def logits(backend: str | Exact, kv_dtype: str = "f16") -> np.ndarray:
            context = mtpcore.Context(model, len(tokens), backend=backend, kv_dtype=kv_dtype)  # noqa: B023
            return context.process(batch).logits.astype(np.float64)  # noqa: B023

        wanted = logits(Exact())
        for kv_dtype in KV_DTYPES:
            off = logits("cpu", kv_dtype) - wanted
            rows = np.sqrt(np.mean(off**2, axis=1) / np.mean(wanted**2, axis=1))
            print(
                f"{path} {len(tokens)} tokens, {kv_dtype:5}: "
                f"{np.sqrt(np.mean(off**2) / np.mean(wanted**2)):.5%} of the logits, "
                f"median row {np.median(rows):.5%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
