"""How often drafts that share the target's noise agree with it, on text the model never saw.

Teacher-forced: for every place of a window the target's row and the head's first draft after the
same tokens. Figures of ``tests/data/glm-11``: rates of argmax drafts, of coupled ones, and the
bound, the sum of min(p, q), for drafts drawn from the head's own distribution.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from harness.fixtures import model_file

from mtpcore import Batch, Context, Sampling, link, load_model
from mtpcore.sampling import Sampler, Scratch

FIXTURE = Path(__file__).parents[1] / "data" / "glm-11"
N_WINDOWS, N_WINDOW, N_SEEDS = 12, 256, 16
FIGURES = {
    0.5: (0.653, 0.761, 0.776),
    0.8: (0.584, 0.767, 0.794),
    1.0: (0.531, 0.764, 0.801),
    1.3: (0.436, 0.765, 0.804),
}


@pytest.fixture(scope="module")
def rows():
    """Logits of target and head, float32[n_windows, n_places, n_vocab]."""
    held = np.asarray(json.loads((FIXTURE / "held.json").read_text())["held_ids"], np.int32)
    with load_model(model_file("glm-11")) as model:
        llm = Context(model, N_WINDOW, n_seq_max=N_WINDOWS, kv_dtype="f32", threads=2)
        cross = link(llm)
        target, head = [], []
        for seq, tokens in enumerate(held[: N_WINDOWS * N_WINDOW].reshape(N_WINDOWS, N_WINDOW)):
            target.append(llm.process(Batch.of(tokens, seq=seq, outputs="all")).logits[1:])
            entries = Batch.of(tokens[1:], seq=seq, pos=1, outputs="all")
            head.append(cross.contexts["draft"].process(entries).logits)
        return np.stack(target), np.stack(head)


def softmax(logits, temperature):
    scaled = logits.astype(np.float64) / temperature
    p = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("temperature", FIGURES)
def test_argmax_rate_and_bound(rows, temperature):
    """Expectations, without a draw."""
    p, q = (softmax(logits, temperature) for logits in rows)
    argmax = np.take_along_axis(p, q.argmax(axis=-1)[..., None], axis=-1).mean()
    bound = np.minimum(p, q).sum(axis=-1).mean()
    wanted_argmax, _, wanted_bound = FIGURES[temperature]
    assert abs(argmax - wanted_argmax) < 0.005
    assert abs(bound - wanted_bound) < 0.005


@pytest.mark.parametrize("temperature", FIGURES)
def test_coupled_rate(rows, temperature):
    scratch, none = Scratch(rows[0].shape[-1]), np.zeros(0, np.int32)
    agreed = []
    for seed in range(N_SEEDS):
        for window, (target, head) in enumerate(zip(*rows, strict=True)):
            sampler = Sampler(Sampling(temperature=temperature, seed=seed, stream=window), scratch)
            for i in range(len(target)):
                chosen = sampler.choose(target[i], none, 0, i + 2)
                agreed.append(chosen == sampler.choose(head[i], none, 0, i + 2))
    assert abs(np.mean(agreed) - FIGURES[temperature][1]) < 0.01
