"""Embeddings: those of other engines, and the same bits alone, among others, and in pieces."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from harness.fixtures import model_file, references
from harness.originals import take_apart
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

import mtpcore
from mtpcore import Batch, Context, MtpcoreError

TEXTS = st.lists(st.lists(st.integers(0, 2000), min_size=1, max_size=40), min_size=1, max_size=7)
POOLINGS = ["mean", "last", "none"]


def rows_of(model, tokens, tap="hidden"):
    """Return what a context hands out, read token by token."""
    context = Context(model, 200, taps=[tap], threads=1)
    return np.concatenate(
        [context.process(Batch.of([token], pos=i)).tap(tap) for i, token in enumerate(tokens)]
    )


def pool(rows, pooling):
    """Return the formula of a pooling, in float64."""
    rows = rows.astype(np.float64)
    if pooling == "none":
        return rows
    made = rows.mean(0) if pooling == "mean" else rows[-1]
    return made / np.linalg.norm(made)


@pytest.mark.parametrize("name", ["glm-11", "ds-12", "mimo-14", "qwen35-16"])
def test_transformers_makes_the_same(name):
    """Its rows after the final norm are in the data of tests."""
    refs = references(name)
    prompt, hidden = (
        refs["prompts"][0].tolist(),
        refs["hidden"].reshape(-1, 48, refs["hidden"].shape[-1])[0],
    )
    with mtpcore.LM(model_file(name), draft=0, n_ctx=64, threads=1) as lm:
        for pooling in ("mean", "last"):
            found = lm.embed(prompt, pooling=pooling)
            assert found.dtype == np.float32
            assert np.linalg.norm(found) == pytest.approx(1, abs=1e-6)
            assert found @ pool(hidden, pooling) > 1 - 1e-5


@searching(25)
@given(texts=TEXTS, pooling=st.sampled_from(POOLINGS), tap=st.sampled_from(["hidden", "residual"]))
def test_a_vector_is_that_of_its_text_alone(lms, texts, pooling, tap):
    lm = lms["demo"]
    together = lm.embed(texts, pooling=pooling, tap=tap)
    for text, found in zip(texts, together, strict=True):
        alone = lm.embed(text, pooling=pooling, tap=tap)
        assert found.tobytes() == alone.tobytes()
    expected = pool(rows_of(lm.model, texts[-1], tap), pooling)
    assert np.allclose(together[-1], expected, atol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_long_texts_are_read_in_pieces(lms, pooling):
    tokens = np.random.default_rng(0).integers(0, 2000, 150).tolist()
    whole = lms["demo"].embed(tokens, pooling=pooling)
    for n_batch in (1, 7, 64, 149):
        with mtpcore.LM("demo", n_ctx=200, n_batch=n_batch, threads=1) as lm:
            assert lm.embed([[5], tokens], pooling=pooling)[1].tobytes() == whole.tobytes()


def test_texts_go_on_meanwhile(lm):
    """Neither loses a sequence to the other, and neither changes a bit of it."""
    texts = [[i, i + 1, i + 2] for i in range(20)]
    alone, written = lm.embed(texts), lm.generate("def read(", max_tokens=40, seed=1).tokens
    with ThreadPoolExecutor(6) as threads:
        embedded = [threads.submit(lm.embed, texts) for _ in range(4)]
        others = [threads.submit(lm.generate, "def read(", max_tokens=40, seed=1) for _ in range(4)]
        for one in embedded:
            assert [v.tobytes() for v in one.result()] == [v.tobytes() for v in alone]
        assert all(one.result().tokens == written for one in others)


def test_event_loops_get_the_same_and_may_leave(lm):
    tokens = list(range(1, 190))

    async def read():
        task = asyncio.create_task(lm.aembed([tokens] * 8))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await lm.aembed([tokens, [7]], pooling="mean")

    found = asyncio.run(read())
    assert [v.tobytes() for v in found] == [
        v.tobytes() for v in lm.embed([tokens, [7]], pooling="mean")
    ]


def test_texts_are_encoded_as_prompts_are(lm):
    tokens = lm.tokenizer.encode("def read(")
    assert lm.embed("def read(").tobytes() == lm.embed(tokens).tobytes()
    assert lm.embed([]) == []


@pytest.mark.parametrize(
    ("value", "pooling"), [(0, "last"), (1, "mean"), (3, "last"), (2, None), (4, None), ("x", None)]
)
def test_a_file_names_its_pooling(tmp_path, value, pooling):
    parts = take_apart("demo")
    parts.metadata[f"{parts.metadata['general.architecture']}.pooling_type"] = value
    parts.write(tmp_path / "model.gguf")
    with mtpcore.LM(tmp_path / "model.gguf", n_ctx=64, threads=1) as lm:
        if pooling is None:
            with pytest.raises(MtpcoreError, match="pooling"):
                lm.embed([5, 6])
            assert lm.embed([5, 6], pooling="mean").shape == (160,)
        else:
            assert lm.embed([5, 6]).tobytes() == lm.embed([5, 6], pooling=pooling).tobytes()


@pytest.mark.parametrize(
    ("prompt", "options", "said"),
    [
        ([[5], []], {}, r"prompts\[1\] of 2.*|without tokens"),
        ([1] * 300, {}, "longer than the context"),
        ([99999], {}, "no such token"),
        ([-1], {}, "no such token"),
        ([[[1]]], {}, "list of token ids"),
        (object(), {}, "prompt"),
        ([5], {"pooling": "max"}, "pooling"),
        ([5], {"tap": "nothing"}, "taps"),
        ([5], {"tap": "layer_input:99"}, "taps"),
        ([5], {"normalize": 2}, "normalize"),
    ],
)
def test_what_cannot_be_read_is_refused(lm, prompt, options, said):
    with pytest.raises(MtpcoreError, match=said):
        lm.embed(prompt, **options)
    assert lm.embed([5, 6]).shape == (160,)


def test_after_close_nothing_is_read(lm):
    lm.close()
    with pytest.raises(MtpcoreError, match="closed"):
        lm.embed([5])


def test_normalize_is_of_vectors(lm):
    raw, unit = lm.embed([5, 6], normalize=False), lm.embed([5, 6])
    assert np.linalg.norm(raw) > 1.5
    assert np.allclose(raw / np.linalg.norm(raw), unit, atol=1e-6)
    rows = lm.embed([5, 6], pooling="none", normalize=True)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
