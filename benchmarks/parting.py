"""Where greedy texts of mtpcore and llama.cpp part, and how near the two tokens are there.

    python benchmarks/parting.py FILE --tokens 128

Each engine continues the same texts greedily. Where they part first, and at every other token up to
there, the definition in float64 (weights exact as the file has them, no int8 activations) gives the
logits that both approximate: how far each engine's are from them (root mean square over their
deviation), and how much less probable the less probable of the two tokens is, in nats. llama.cpp
(``llama-cpp-python``) runs with repacked weights and flash attention, as its programs do.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from versus.peer import Peer, PeerModel

import mtpcore
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.discovery.loading import find_model

TEXTS = (
    "def read_config(path):",
    "The capital of France is",
    "Once upon a time there was a",
    "To make bread you need",
    '{"name": "Ada", "born": 1815, "known for": [',
    "The three laws of motion are",
    "SELECT name, count(*) FROM orders",
    "Dear Sir or Madam,",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    path = Path(find_model(options.model))
    model = mtpcore.load_model(path, mtp=False)
    peer = PeerModel(path, repack=True)
    errors, margins = [], []
    for text in TEXTS:
        prompt = model.tokenizer.encode(text)
        n_ctx = len(prompt) + options.tokens
        ours = mtpcore.Context(model, n_ctx, threads=1)
        plain = mtpcore.Generator(ours, sampling=mtpcore.Sampling.greedy())
        made = list(plain.generate(prompt, max_tokens=options.tokens, ignore_eos=True))
        theirs = Peer(peer, True, n_ctx, threads=1)
        others = _continue(theirs, prompt, len(made))
        n = next((i for i, token in enumerate(made) if token != others[i]), len(made))
        shared = [*prompt, *made[:n]]
        exact = _logits(model, shared, ReferenceBackend("f64"))
        rows = [_logits(model, shared), _forced(theirs, shared)]
        errors.append([_error(found, exact) for found in rows])
        line = f"errors {errors[-1][0]:.2%}, llama.cpp {errors[-1][1]:.2%}"
        if n < len(made):
            difference = exact[-1, made[n]] - exact[-1, others[n]]
            margins.append(abs(difference))
            nearer = "mtpcore" if difference > 0 else "llama.cpp"
            line += f"; part at token {n}, {margins[-1]:.4f} nat apart, float64 takes {nearer}'s"
        else:
            line += f"; {n} equal tokens"
        print(f"{text[:28]!r:32}{line}", flush=True)
        theirs.close()
    ours_error, their_error = np.median(errors, axis=0)
    print(f"median error of logits: {ours_error:.2%}, llama.cpp {their_error:.2%}")
    if margins:
        nats = f"{min(margins):.4f} to {max(margins):.4f} nat"
        print(f"{len(margins)} of {len(TEXTS)} texts part, {nats}")


def _logits(
    model: mtpcore.Model, text: list[int], backend: ReferenceBackend | str = "cpu"
) -> np.ndarray:
    kv_dtype = "f16" if backend == "cpu" else "f32"
    context = mtpcore.Context(model, len(text), kv_dtype=kv_dtype, backend=backend)
    return context.process(mtpcore.Batch.of(text, outputs="all")).logits.astype(np.float64)


def _continue(peer: Peer, prompt: list[int], n: int) -> list[int]:
    made: list[int] = []
    fed = prompt
    while len(made) < n:
        made.append(int(peer.process(fed)[-1].argmax()))
        fed = made[-1:]
    return made


def _forced(peer: Peer, text: list[int]) -> np.ndarray:
    peer.rewind(0)
    return peer.process(text, every=True).astype(np.float64)


def _error(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - exact) ** 2)) / exact.std())


if __name__ == "__main__":
    main()
