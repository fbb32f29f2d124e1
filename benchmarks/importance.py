"""Say what an importance matrix brings, to a model and to its head.

    python benchmarks/importance.py demo [--mixes q4_0,iq4_nl,q4_k_m] [--chunks 100]

Columns of the model are weighed by some files of Python's own library, and others are read: how far
the quantised model's distributions are from the model's own, and how near its head's are to its
own, at true tokens and rows. Heads have the mix's types, too. Nothing depends on the machine.
"""

from __future__ import annotations

import argparse
import sysconfig
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtpcore import Batch, Context, link, load_model
from mtpcore.calibration.chunks import read_chunks
from mtpcore.calibration.collecting import collect_importance
from mtpcore.calibration.settings import ImportanceSettings
from mtpcore.conversion import quantize
from mtpcore.graph import expose_products
from mtpcore.runtime.output import Output
from mtpcore.runtime.runner import GraphRunner

N_FILES, SIZE = 40, 256
"""So many files are read, and the next ones weigh columns; tokens of a chunk."""

F32 = NDArray[np.float32]


def write_text(path: Path, begin: int) -> Path:
    """Write some files of the library as one."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [p for p in sorted(library.glob("*.py")) if 4000 < p.stat().st_size < 40000]
    texts = [one.read_text("utf-8", "ignore") for one in files[begin : begin + N_FILES]]
    path.write_text("\n".join(texts))
    return path


def weigh(model: str, text: Path, out: Path, n_chunks: int, heads: bool) -> Path:
    """Write an importance matrix."""
    settings = ImportanceSettings(chunk_size=SIZE, n_chunks=n_chunks, heads=heads, perplexity=False)
    collect_importance(
        model, [text], out, settings, lambda title: nullcontext(lambda done, total: None)
    )
    return out


def shares(logits: F32) -> F32:
    """Return probabilities."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    parts: F32 = powers / powers.sum(axis=1, keepdims=True)
    return parts


def keep_logits(runner: GraphRunner, role: str, made: dict[str, F32]) -> None:
    """Let a graph make logits of every row, and keep those of its newest batch."""
    tapped, before = runner.with_taps(()), runner.deliver
    program, _ = expose_products(tapped.program, logits=True)
    runner.set_taps(tapped._replace(program=program))

    def deliver(batch: Batch, output: Output) -> None:
        if before is not None:
            before(batch, output)
        made[role] = output.tap("logits")

    runner.deliver = deliver


def read(path: str | Path, text: Path, n_chunks: int) -> list[tuple[F32, F32]]:
    """Return of each chunk the probabilities of the model, and of its head, at the same places."""
    made: dict[str, F32] = {}
    found = []
    with load_model(path, sidecars=False) as model:
        cross = link(Context(model, SIZE, n_batch=SIZE))
        for role, context in cross.contexts.items():
            keep_logits(context.runner, role, made)
        for chunk in read_chunks(model.tokenizer, [text], SIZE)[:n_chunks]:
            cross.remove(0)
            cross.llm.process(Batch.of(chunk, outputs="none"))
            cross.digest(0)  # for which the head reads the text
            head = made["draft"]  # its first entry is of the second token
            found.append((shares(made["llm"]), shares(head)))
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--mixes", default="q4_0,iq4_nl,q4_k_m")
    parser.add_argument("--chunks", type=int, default=100)
    args = parser.parse_args()
    print("| mix | weighed | divergence | greedy drafts accepted | sampled drafts accepted |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        text, weighing = (write_text(folder / f"{at}", at) for at in (0, N_FILES))
        trunk = weigh(args.model, weighing, folder / "trunk.gguf", args.chunks, heads=False)
        whole = weigh(args.model, weighing, folder / "whole.gguf", args.chunks, heads=True)
        own = read(args.model, text, args.chunks)
        rows = [("none", "", own)]
        for mix in args.mixes.split(","):
            for said, weights in (("nothing", None), ("trunk", trunk), ("trunk, head", whole)):
                model = folder / "model.gguf"
                quantize(args.model, model, outtype=mix, mtp_type="mix", importance=weights)
                rows.append((mix, said, read(model, text, args.chunks)))
        for mix, said, found in rows:
            far, greedy, sampled = [], [], []
            for (wanted, _), (model_, head) in zip(own, found, strict=True):
                far.append((wanted * np.log((wanted + 1e-12) / (model_ + 1e-12))).sum(axis=1))
                mine = model_[-len(head) :]
                greedy.append(mine.argmax(axis=1) == head.argmax(axis=1))
                sampled.append(np.minimum(mine, head).sum(axis=1))
            numbers = (np.concatenate(one).mean() for one in (far, greedy, sampled))
            print(f"| {mix} | {said} |", " | ".join(f"{number:.5f}" for number in numbers), "|")


if __name__ == "__main__":
    main()
