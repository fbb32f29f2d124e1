"""The trained fixtures through contexts, links and the generator: greedy texts and acceptance."""

import numpy as np
import pytest
from harness.fixtures import counts, model_file, references
from harness.scripted import run

from mtpcore import Context, Generator, Sampling, link, load_model

BACKENDS = ["cpu", "reference"]
N = 64
NEAR_TIE = 0.02
"""Keys and values rounded to f16 may choose differently where the two best are as close."""


@pytest.fixture(scope="module", params=["ds-12", "glm-11"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def refs(name):
    return references(name)


@pytest.fixture(scope="module")
def rates(name):
    found = counts(name)
    return {k: found[f"k={k}"]["accepted"] / found[f"k={k}"]["drafted"] for k in (1, 2, 3, 4)}


@pytest.fixture(scope="module")
def model(name):
    with load_model(model_file(name)) as model:
        yield model


def context(model, backend, **settings):
    return Context(model, 160, **{"kv_dtype": "f32", "backend": backend, "threads": 2, **settings})


def texts(generator, prompts, n=N):
    made = [generator.add(p.tolist(), max_tokens=n, ignore_eos=True) for p in prompts]
    run(generator)
    return [r.tokens for r in made]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("draft", [0, 1, 3])
def test_greedy_texts_and_acceptance(model, refs, rates, backend, draft):
    """All prompts at once; the reference backend takes two of them, and no rates."""
    n = 6 if backend == "cpu" else 2
    llm = context(model, backend, n_seq_max=n)
    generator = Generator(link(llm), sampling=Sampling.greedy(), draft=draft)
    made = texts(generator, refs["prompts"][:n], refs["greedy"].shape[1])
    assert made == refs["greedy"][:n].tolist()
    if draft and backend == "cpu":
        assert abs(generator.stats.acceptance - rates[draft]) < 0.02


@pytest.mark.slow
def test_acceptance_on_the_reference(model, refs, rates):
    llm = context(model, "reference", n_seq_max=6)
    generator = Generator(link(llm), sampling=Sampling.greedy(), draft=3)
    assert texts(generator, refs["prompts"]) == refs["greedy"].tolist()
    assert abs(generator.stats.acceptance - rates[3]) < 0.02


@pytest.mark.parametrize("backend", BACKENDS)
def test_f16_keys_and_values(model, refs, backend):
    n = 6 if backend == "cpu" else 1
    llm = context(model, backend, n_seq_max=n, kv_dtype="f16")
    generator = Generator(link(llm), sampling=Sampling.greedy(), draft=3)
    for i, made in enumerate(texts(generator, refs["prompts"][:n])):
        near = np.flatnonzero(refs["greedy_margin"][i] < NEAR_TIE)
        end = near[0] if len(near) else N
        assert made[:end] == refs["greedy"][i, :end].tolist()
