"""The weights of a head before the first step, on texts of a model that only repeats itself."""

from types import SimpleNamespace

import numpy as np
import pytest
from mtpcore_eagle3 import fitting

WIDTH, N_TOKENS, N_TAPS = 128, 200, 3


@pytest.fixture(scope="module")
def repeating():
    """Return a target, its rows of embeddings, and a way to read a text of two equal halves.

    Taps say token and token before. A row foresees the token that comes next in the second half,
    and nothing in the first one.
    """
    rng = np.random.default_rng(5)
    table = rng.standard_normal((N_TOKENS, WIDTH)).astype(np.float32)
    mixed = rng.standard_normal((2, WIDTH, N_TAPS * WIDTH)).astype(np.float32)
    norm = SimpleNamespace(array=lambda: np.ones(WIDTH, np.float32))
    hparams = SimpleNamespace(width=WIDTH, n_layers=9)
    target = SimpleNamespace(hparams=hparams, tensors={"output_norm.weight": norm})

    def read(half):
        tokens = np.concatenate([half, half])
        embeddings = table[tokens]
        before = np.roll(embeddings, 1, axis=0)
        taps = (embeddings @ mixed[0] + 0.5 * before @ mixed[1]) / WIDTH**0.5
        rows = np.roll(embeddings, -1, axis=0)
        rows[: len(half)] = rng.standard_normal((len(half), WIDTH))
        return embeddings[1:], taps[:-1], rows[1:]

    return target, table, read


def test_what_followed_the_last_time_is_drafted(repeating):
    target, table, read = repeating
    rng = np.random.default_rng(7)
    texts = [rng.permutation(N_TOKENS)[:64] for _ in range(41)]
    pieces = [read(half) for half in texts[:-1]]
    weights = fitting.begin(target, table, table, lambda: iter(pieces), 0, 1)
    embeddings, taps, _ = read(texts[-1])
    (rows,) = fitting.draft(weights, embeddings[None], taps[None], 1, target)
    drafts = np.argmax(rows[0] @ weights["output.weight"].T, axis=1)
    half = texts[-1]
    hits = drafts[:-1] == np.concatenate([half, half])[2:]
    assert hits[: len(half) - 2].mean() < 0.1, "nothing tells what comes next"
    assert hits[len(half) :].mean() > 0.9
