"""Texts with adapters: what each request gets, whatever drafts and whoever else is written."""

import pytest
from harness.adapters import matrices_of, write_adapter
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import BatchError, Context, Generator, Sampling, link, load_adapter, load_model

CHOICES = (None, [], ["one"], ["two"], {"one": 0.5, "two": -1.5})
PROMPTS = tuple(tuple(range(40, 40 + n)) for n in (3, 70, 90, 130))
SAMPLING = Sampling(temperature=0.8, seed=5)


@pytest.fixture(scope="module")
def model():
    with load_model("demo") as opened:
        yield opened


@pytest.fixture(scope="module")
def adapters(model, tmp_path_factory):
    folder, shapes = tmp_path_factory.mktemp("adapters"), matrices_of(model)
    for seed, name in enumerate(("one", "two")):
        path = folder / f"{name}.gguf"
        write_adapter(path, model.architecture, shapes, seed=seed, size=0.1)
    return {name: load_adapter(folder / f"{name}.gguf") for name in ("one", "two")}


def generator(model, adapters, drafter="auto", **options):
    context = Context(model, 256, n_seq_max=3, adapters=adapters)
    return Generator(link(context, drafter), sampling=SAMPLING, adapters=["one"], **options)


def finish(gen):
    while gen.active:
        gen.step()


@pytest.fixture(scope="module")
def wanted(model, adapters):
    """Texts that are written alone, without drafts."""
    texts = {}
    for i, choice in enumerate(CHOICES):
        for prompt in PROMPTS:
            plain = generator(model, adapters, [])
            texts[i, prompt] = [*plain.generate(prompt, max_tokens=12, adapters=choice)]
    assert all(texts[0, prompt] == texts[2, prompt] for prompt in PROMPTS)  # the default is "one"
    assert len({tuple(texts[i, PROMPTS[1]]) for i in range(1, 5)}) > 1
    return texts


@searching(15)
@given(st.data(), st.sampled_from([0, 3, "auto"]), st.sampled_from(["auto", "lookup"]))
def test_a_text_is_what_it_is_alone(model, adapters, wanted, data, draft, drafter):
    """Drafted, beside others, and after what the prefix cache has of texts with other adapters."""
    gen = generator(model, adapters, drafter, draft=draft, prefix_cache="all")
    order = data.draw(st.lists(st.sampled_from(sorted(wanted)), min_size=1, max_size=12))
    requests = []
    for i, prompt in order:
        requests.append((gen.add(prompt, max_tokens=12, adapters=CHOICES[i]), i, prompt))
        for _ in range(data.draw(st.integers(0, 3))):
            gen.step()
    finish(gen)
    for request, i, prompt in requests:
        assert request.tokens == wanted[i, prompt]


def test_texts_with_other_adapters_have_no_prefix_in_common(model, adapters, wanted):
    gen = generator(model, adapters, [], prefix_cache="all")
    prompt, cached = PROMPTS[3], []
    for i in (1, 2, 1, 2, 4):
        request = gen.add(prompt, max_tokens=2, adapters=CHOICES[i])
        finish(gen)
        cached.append(request.n_cached > 0)
    assert cached == [False, False, True, True, False]


def test_adapters_that_are_not_there_are_refused_before_anything_runs(model, adapters):
    gen = generator(model, adapters, [])
    with pytest.raises(BatchError, match="no such adapter"):
        gen.add([1], adapters=["three"])
    with pytest.raises(BatchError, match="no such adapter"):
        Generator(gen.cross, adapters=["three"])
    with pytest.raises(BatchError, match="no adapters"):
        Generator(Context(model, 64)).add([1], adapters=["one"])
    assert not gen.active
