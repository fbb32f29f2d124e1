"""The trained fixture through the generator: drafting never changes a text."""

from pathlib import Path

import numpy as np
import pytest
from harness.fixtures import model_file
from harness.scripted import SCRIPTS, Scripted, run

from mtpcore import Batch, Context, Generator, Sampling, link, load_model
from mtpcore.testing.pairs import cover_pairs

FIXTURE = Path(__file__).parents[1] / "data" / "glm-11"
N = 64


@pytest.fixture(scope="module")
def refs():
    with np.load(FIXTURE / "refs.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def model():
    with load_model(model_file("glm-11")) as model:
        yield model


def context(model, backend, **settings):
    return Context(model, 160, **{"kv_dtype": "f32", "backend": backend, "threads": 2, **settings})


def texts(generator, prompts, n=N):
    made = [generator.add(p.tolist(), max_tokens=n, ignore_eos=True) for p in prompts]
    run(generator)
    return [r.tokens for r in made]


SAMPLINGS = (
    Sampling.greedy(),
    Sampling(temperature=0.7, top_k=20, seed=1),
    Sampling(temperature=1.5, top_p=0.9, seed=2, stream=9),
    Sampling(temperature=0.7, min_p=0.05, repetition_penalty=1.3, seed=3),
    Sampling(temperature=1.5, frequency_penalty=0.4, presence_penalty=0.2, seed=2**64 - 1),
    Sampling(temperature=0.7, logit_bias={10: 2.0, 13: float("-inf")}, seed=5),
)
FACTORS = {
    "sampling": range(len(SAMPLINGS)),
    "k": (0, 1, 2, 3, 5, 8),
    "drafter": ("head", "right", "wrong", "right for three", "minus one", "too long", "empty"),
    "n_seq": (1, 2, 4),
    "n_batch": (5, 17, 512),
    "kv_dtype": ("f32", "f16", "q8_0"),
    "draft_sampler": ("coupled", "argmax"),
}
ROWS = cover_pairs(FACTORS, n_candidates=50)


@pytest.fixture(scope="module")
def plain(model, refs):
    """Texts of plain decoding, one sequence alone, token by token."""
    known = {}

    def text(prompt, sampling, kv_dtype, n=20):
        key = prompt, sampling, kv_dtype
        if key not in known:
            llm = context(model, "cpu", kv_dtype=kv_dtype)
            generator = Generator(llm, sampling=SAMPLINGS[sampling])
            (known[key],) = texts(generator, refs["prompts"][prompt : prompt + 1], n)
        return known[key]

    return text


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_texts_are_those_of_plain_decoding(model, refs, plain, number):
    """Each row: some prompts at once in shuffled slots, each with settings of its own."""
    row = ROWS[number]
    n, n_seq = 20, row["n_seq"]
    order = np.random.default_rng(number).permutation(6)[: n_seq + 1]
    samplings = [(row["sampling"] + i) % len(SAMPLINGS) for i in range(len(order))]
    truths = [plain(p, s, row["kv_dtype"], n) for p, s in zip(order, samplings, strict=True)]
    known = [[*refs["prompts"][p].tolist(), *t] for p, t in zip(order, truths, strict=True)]
    drafter = "auto" if row["drafter"] == "head" else Scripted(SCRIPTS[row["drafter"]], known)
    llm = context(
        model,
        "cpu",
        n_seq_max=n_seq + 1,
        n_batch=row["n_batch"],
        kv_dtype=row["kv_dtype"],
    )
    cross = link(llm, drafter)
    cross.llm.process(Batch.of([1, 2, 3], seq=int(order[0]) % (n_seq + 1)))
    generator = Generator(cross, draft=row["k"], draft_sampler=row["draft_sampler"])
    made = []
    for p, s in zip(order, samplings, strict=True):
        prompt = refs["prompts"][p].tolist()
        made.append(generator.add(prompt, sampling=SAMPLINGS[s], max_tokens=n, ignore_eos=True))
        generator.step()
    run(generator)
    assert [r.tokens for r in made] == truths
    if row["drafter"] in ("right", "too long") and row["k"]:
        assert generator.stats.acceptance == 1.0
