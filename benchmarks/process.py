"""One token of a small model through ``process()``, Python included.

``python benchmarks/process.py [MODEL]`` (default: the demo) prints the median over many tokens at
positions under 300 with ``outputs="last"``.
"""

from __future__ import annotations

import argparse

from timing import Sample, once

import mtpcore


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    model = mtpcore.load_model(given.model)
    samples = Sample()
    for _ in range(4):
        context = mtpcore.Context(model, 512, threads=given.threads)
        context.prepare()
        context.process(mtpcore.Batch.of([5] * 32))
        for pos in range(32, 300):

            def step(pos: int = pos) -> None:
                batch = mtpcore.Batch.of([7], seq=0, pos=pos, outputs="last")
                assert context.process(batch).logits.shape[0] == 1  # noqa: B023

            samples.append(once(step))
    print(f"{given.model}, {given.threads} threads: {samples}")


if __name__ == "__main__":
    main()
