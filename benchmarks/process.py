"""One token of a small model, and one step of heads that draft for it, Python included.

``python benchmarks/process.py [MODEL]`` (default: the demo) prints the median over many tokens at
positions under 300 through ``process()`` with ``outputs="last"``, and then, for two drafters whose
heads each draft one step and have no KV cache (the examples' Medusa and MLP speculator, random
weights for the model's sizes), what a step takes in ``Cross.draft`` and what its graph takes alone.

``python benchmarks/process.py MODEL --rows 1,2,4,8 --threads 1`` prints instead what a pass of so
many tokens takes after 300 others, logits of all of them included: CPU seconds, lower quartiles of
passes in turn.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from time import process_time

import numpy as np
from timing import Sample, alternate, once

import mtpcore
from mtpcore.discovery.registry import Registry
from mtpcore.gguf import write_model_file

EXAMPLES = Path(__file__).parents[1] / "examples"
N_HEADS, TURNS = 4, 400
TEXT = [5] * 32


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=_numbers, help="tokens of passes, such as 1,2,4,8")
    given = parser.parse_args()
    model = mtpcore.load_model(given.model)
    if given.rows:
        print_passes(model, given.threads, given.rows)
        return
    print(f"{given.model}, {given.threads} threads: {token(model, given.threads)}")
    with tempfile.TemporaryDirectory() as folder:
        for drafter in write_heads(Path(folder), model):
            step, graph = step_of_heads(model, drafter, given.threads)
            print(f"{drafter.drafters[0].name}, a step: {step}")
            print(f"{drafter.drafters[0].name}, its graph: {graph}")


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def print_passes(model: mtpcore.Model, threads: int, rows: list[int]) -> None:
    """Time passes of several tokens in turn."""
    context = mtpcore.Context(model, 512, threads=threads)
    context.prepare()
    rng, n_vocab = np.random.default_rng(0), model.hparams.n_vocab
    context.process(mtpcore.Batch.of(rng.integers(0, n_vocab, 300).tolist()))
    seconds: dict[int, list[float]] = {n: [] for n in rows}
    for _ in range(TURNS):
        for n, taken in seconds.items():
            tokens = rng.integers(0, n_vocab, n).tolist()
            begin = process_time()
            out = context.process(mtpcore.Batch.of(tokens, pos=300, outputs="all"))
            assert out.logits.shape[0] == n
            taken.append(process_time() - begin)
            context.rewind(0, 300)
    first = quantiles(seconds[rows[0]])[0]
    for n, taken in seconds.items():
        pass_ = quantiles(taken)[0]
        print(f"{n} rows: {pass_ * 1e3:.2f} ms, {pass_ / first:.2f} of {rows[0]}")


def token(model: mtpcore.Model, threads: int) -> Sample:
    """Time tokens one after the other."""
    samples = Sample()
    for _ in range(4):
        context = mtpcore.Context(model, 512, threads=threads)
        context.prepare()
        context.process(mtpcore.Batch.of(TEXT))
        for pos in range(len(TEXT), 300):

            def step(pos: int = pos) -> None:
                batch = mtpcore.Batch.of([7], seq=0, pos=pos, outputs="last")
                assert context.process(batch).logits.shape[0] == 1  # noqa: B023

            samples.append(once(step))
    return samples


def write_heads(folder: Path, model: mtpcore.Model) -> Iterator[mtpcore.Model]:
    """Write files of random heads for a model, and load them with the plugins that know them."""
    rng = np.random.default_rng(0)
    width, n_vocab = model.hparams.width, model.hparams.n_vocab

    def matrix(*shape: int) -> np.ndarray:
        scale = np.float32(shape[-1] ** -0.5)
        return rng.standard_normal(shape, np.float32) * scale

    parts: dict[str, dict[str, tuple[int, ...]]] = {
        "medusa": {"medusa.0.weight": (width, width), "output.weight": (n_vocab, width)},
        "mlp-speculator": {
            "proj.weight": (width, width),
            "token_embd.weight": (n_vocab, width),
            "norm.weight": (width,),
            "norm.bias": (width,),
            "output.weight": (n_vocab, width),
        },
    }
    sizes = {"block_count": N_HEADS, "embedding_length": width, "vocab_size": n_vocab}
    for name, shapes in parts.items():
        tensors = {
            f"blk.{n}.{part}": matrix(*s) for n in range(N_HEADS) for part, s in shapes.items()
        }
        metadata = {f"{name}.{key}": value for key, value in sizes.items()}
        write_model_file(folder / f"{name}.gguf", name, metadata, tensors)
        package = f"mtpcore-{name}"
        sys.path.append(str(EXAMPLES / package / "src"))
        plugin = importlib.import_module(package.replace("-", "_"))
        yield mtpcore.load_model(folder / f"{name}.gguf", plugins=Registry.of(plugin))


def step_of_heads(
    model: mtpcore.Model, drafter: mtpcore.Model, threads: int
) -> tuple[Sample, Sample]:
    """Time a step of all heads' drafts, and a run of a head's graph."""
    cross = mtpcore.link(mtpcore.Context(model, 512, threads=threads), draft_model=drafter)
    cross.prepare()
    cross.llm.process(mtpcore.Batch.of(TEXT))
    ready = []
    for context in (context for role, context in cross.contexts.items() if role != "llm"):
        runner = context.runner
        slots = {slot: np.zeros((1, n), np.float32) for slot, n in runner.program.slots().items()}
        batch, _, _ = runner.admit(mtpcore.Batch([7], pos=len(TEXT), slots=slots))
        ready.append((runner.plan, batch))

    def draft() -> None:
        assert len(cross.draft(0, N_HEADS)) == N_HEADS

    def run() -> None:
        for plan, batch in ready:
            plan.run(batch, None)

    steps, graphs = alternate([draft, run], TURNS, rest=0.0)
    return Sample(s / N_HEADS for s in steps), Sample(s / N_HEADS for s in graphs)


if __name__ == "__main__":
    main()
