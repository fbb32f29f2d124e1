"""Acceptance rate of the first draft: coupled drafts against most probable tokens.

``python benchmarks/coupling.py [MODEL]`` (default: the demo) samples texts at several temperatures,
each with both ways of drafting, and prints the rates. The texts are the same both times, because
drafting never changes them.

``python benchmarks/coupling.py MODEL --text FILE`` takes written text instead (a JSON object whose
``held_ids`` are token ids) and compares target and head at every position, each with the true
history: the rate of most probable tokens and the bound, the sum of min(p, q), as expectations;
the coupled rate over some seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import mtpcore
from mtpcore.sampling.reference import gumbel

PROMPT = "def read_config(path):\n    "
TEMPERATURES = (0.5, 0.8, 1.0, 1.3)
WINDOWS, WIDTH = 12, 256


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--text", type=Path, help="JSON with token ids, held_ids")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256, help="of each sampled text")
    given = parser.parse_args()
    model = mtpcore.load_model(given.model)
    if given.text:
        of_written_text(model, json.loads(given.text.read_text("utf-8"))["held_ids"], given.seeds)
    else:
        of_sampled_text(model, given.seeds, given.tokens)


def of_sampled_text(model: mtpcore.Model, n_seeds: int, n_tokens: int) -> None:
    """Let the model write, drafting one token at a time."""
    prompt = model.tokenizer.encode(PROMPT)
    print(f"{model.path.name}: first drafts accepted, {n_seeds} texts of {n_tokens} tokens")
    for temperature in TEMPERATURES:
        rates = {}
        for kind in ("argmax", "coupled"):
            cross = mtpcore.link(mtpcore.Context(model, len(prompt) + n_tokens))
            generator = mtpcore.Generator(cross, draft=1, draft_sampler=kind)
            for seed in range(n_seeds):
                sampling = mtpcore.Sampling(temperature=temperature, seed=seed)
                request = generator.add(
                    prompt, sampling=sampling, max_tokens=n_tokens, ignore_eos=True
                )
                while not request.done:
                    generator.step()
            rates[kind] = generator.stats.acceptance
        print(
            f"temperature {temperature}: best token {rates['argmax']:.3f}, "
            f"coupled {rates['coupled']:.3f}"
        )


def of_written_text(model: mtpcore.Model, tokens: list[int], n_seeds: int) -> None:
    """Compare the distributions of target and head at every position."""
    windows = [tokens[WIDTH * i : WIDTH * (i + 1)] for i in range(WINDOWS)]
    pairs = [np.stack(logits_of(model, window)) for window in windows]
    target, head = np.concatenate(pairs, axis=1).astype(np.float64)
    print(f"{model.path.name}: {len(target)} positions of written text, {n_seeds} seeds")
    for temperature in TEMPERATURES:
        p, q = (log_softmax(logits / temperature) for logits in (target, head))
        best = np.exp(np.take_along_axis(p, q.argmax(-1)[:, None], -1)).mean()
        bound = np.exp(np.minimum(p, q)).sum(-1).mean()
        coupled = np.mean([agreement(p, q, seed) for seed in range(n_seeds)])
        print(
            f"temperature {temperature}: best token {best:.3f}, coupled {coupled:.3f}, "
            f"bound {bound:.3f}"
        )


def logits_of(model: mtpcore.Model, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return what target and head say of each token after the second, float32[n - 1, n_vocab]."""
    llm = mtpcore.Context(model, len(tokens), kv_dtype="f32", taps=["hidden"])
    out = llm.process(mtpcore.Batch.of(tokens, outputs="all"))
    draft = mtpcore.Context(model, len(tokens), kv_dtype="f32", graph_type="draft")
    slots = {"hidden": out.tap("hidden")[:-1]}
    made = draft.process(mtpcore.Batch(tokens[1:], pos=1, outputs="all", slots=slots))
    return out.logits[1:], made.logits


def log_softmax(x: np.ndarray) -> np.ndarray:
    """Return log probabilities."""
    x = x - x.max(-1, keepdims=True)
    logs: np.ndarray = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return logs


def agreement(p: np.ndarray, q: np.ndarray, seed: int) -> float:
    """Return how often both choose the same token with the same noise."""
    ids = np.arange(p.shape[-1], dtype=np.int32)
    sampling = mtpcore.Sampling(seed=seed)
    same = 0
    for index in range(len(p)):
        noise = gumbel(sampling, index, ids)
        same += int((p[index] + noise).argmax() == (q[index] + noise).argmax())
    return same / len(p)


if __name__ == "__main__":
    main()
