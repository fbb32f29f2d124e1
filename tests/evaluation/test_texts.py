"""Texts read by models: against the definition, and llama.cpp's figures of the same files."""

import math
from pathlib import Path

import numpy as np
import pytest
from harness import t5
from harness.fixtures import model_file
from harness.published import tokenizer, write_checkpoint

import mtpcore
from mtpcore.conversion import convert, quantize
from mtpcore.errors import BatchError, ModelFileError
from mtpcore.evaluation import evaluate, figures, texts

LICENSE = (Path(__file__).parents[2] / "LICENSE").read_text("utf-8")
PEER = {
    "perplexity": (69.398659, 4.003835),
    "reference_perplexity": (67.941850, 3.923936),
    "log_perplexity_ratio": (0.021215, 0.004482),
    "mean": (0.018958, 0.000466),
    "maximum": 0.305711,
    "percentiles": {"50": 0.013097, "90": 0.037268, "95": 0.051877, "99": 0.111492},
    "probability": 0.02683,
    "same_choice": (0.88244, 0.00718),
}
"""What ``llama-perplexity -m coarse.gguf -f LICENSE -c 128 --kl-divergence-base FILE
--kl-divergence`` said, where FILE has the probabilities of ``plain.gguf``, in 16 bits."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The demo in F32, and after a detour by Q4_0: both engines compute in F32."""
    folder = tmp_path_factory.mktemp("models")
    plain, small, coarse = (folder / f"{name}.gguf" for name in ("plain", "small", "coarse"))
    quantize("demo", plain, outtype="f32")
    quantize("demo", small, outtype="q4_0")
    quantize(small, coarse, outtype="f32")
    return plain, coarse


def context(path, n_ctx=128, **more):
    return mtpcore.Context(mtpcore.load_model(path, mtp=False), n_ctx, **more)


def test_figures_are_llama_cpps(files):
    plain, coarse = map(context, files)
    found = evaluate(coarse, {"LICENSE": LICENSE}, against=plain, n_ctx=128)
    of_all, far = found.figures, found.figures.divergence
    assert (found.n_chunks, of_all.n_tokens) == (32, 32 * 63)

    def pair(estimate):
        return estimate.value, estimate.error

    assert pair(of_all.perplexity) == pytest.approx(PEER["perplexity"], rel=2e-5)
    assert pair(far.reference_perplexity) == pytest.approx(PEER["reference_perplexity"], rel=2e-5)
    assert pair(far.log_perplexity_ratio) == pytest.approx(PEER["log_perplexity_ratio"], rel=5e-4)
    assert pair(far.mean) == pytest.approx(PEER["mean"], rel=1e-3)
    assert far.maximum == pytest.approx(PEER["maximum"], rel=1e-3)
    for percent, value in PEER["percentiles"].items():
        assert far.percentiles[percent] == pytest.approx(value, rel=1e-3)
    assert far.probability == pytest.approx(PEER["probability"], rel=1e-3)
    assert pair(far.same_choice) == pytest.approx(PEER["same_choice"], rel=1e-3)


def test_losses_are_those_of_chunks_read_at_once():
    model, llm = mtpcore.load_model("demo", mtp=False), context("demo", 64)
    tokens = model.tokenizer.encode(LICENSE)
    losses = []
    for begin in range(0, 3 * 64, 64):
        logits = llm.process(mtpcore.Batch.of(tokens[begin : begin + 64], outputs="all")).logits
        llm.remove(0)
        for i in range(32, 63):
            row = logits[i].astype(np.float64)
            losses.append(float(np.log(np.exp(row - row.max()).sum()) + row.max()
                                - row[tokens[begin + i + 1]]))  # fmt: skip
    found = evaluate(context("demo", 64), {"x": LICENSE}, n_ctx=64, n_chunks=3)
    assert found.figures.n_tokens == len(losses) == 93
    assert found.figures.perplexity.value == pytest.approx(math.exp(np.mean(losses)), rel=1e-9)


def test_how_many_rows_at_once_changes_nothing(files, monkeypatch):
    one = evaluate(context(files[1]), {"x": LICENSE}, against=context(files[0]), n_ctx=128)
    small, sizes = context(files[1], n_batch=3), []
    n_vocab = small.model.hparams.n_vocab

    def compare_rows(logits, *others):
        sizes.append(logits.shape)
        return figures.compare_rows(logits, *others)

    monkeypatch.setattr(texts, "_VALUES", 5 * n_vocab)
    monkeypatch.setattr(texts, "compare_rows", compare_rows)
    other = evaluate(small, {"x": LICENSE}, against=context(files[0]), n_ctx=128)
    assert max(sizes) == (5, n_vocab)  # memory is bounded by them, whatever a text's length
    assert one.n_chunks == other.n_chunks
    assert one.figures == other.figures


def test_several_texts_and_what_is_reported():
    told = []
    llm = context("demo", 64)
    found = evaluate(
        llm, {"a": LICENSE[:3000], "b": LICENSE[3000:]}, n_ctx=64, n_chunks=20,
        report=lambda *done: told.append(done),
    )  # fmt: skip
    assert [*found.texts] == ["a", "b"]
    assert sum(one.n_tokens for one in found.texts.values()) == found.figures.n_tokens == 20 * 31
    assert told == [(64 * i, 64 * 20) for i in range(1, 21)]
    assert llm.length(0) == 0


def test_each_chunk_begins_with_the_first_token(tmp_path):
    plain = mtpcore.load_model("demo", mtp=False)
    tokens = plain.tokenizer.encode(LICENSE)
    chunks = texts._chunks(plain, {"x": LICENSE}, 64)
    assert chunks[1][1].tolist() == tokens[64:128]
    said = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 7}
    quantize("demo", tmp_path / "with.gguf", outtype="q8_0", override=said)
    chunks = texts._chunks(mtpcore.load_model(tmp_path / "with.gguf"), {"x": LICENSE}, 64)
    assert {int(chunk[0]) for _, chunk in chunks} == {7}
    assert chunks[1][1][1:].tolist() == tokens[64:127]


def test_what_cannot_be_evaluated(monkeypatch, tmp_path):
    llm = context("demo", 64)
    with pytest.raises(ModelFileError, match="too short") as caught:
        evaluate(llm, {"note": "short"}, n_ctx=64)
    assert caught.value.where == "note"
    with pytest.raises(BatchError, match="too few tokens"):
        evaluate(llm, {"x": LICENSE}, n_ctx=3)
    with pytest.raises(BatchError, match="too few tokens"):
        evaluate(llm, {"x": LICENSE}, n_ctx=64, n_chunks=0)
    with pytest.raises(ModelFileError, match="it is another model"):
        evaluate(llm, {"x": LICENSE}, n_ctx=64, against=context(model_file("glm-11"), 64))

    s = next(iter(t5.SHAPES.values()))
    hf = write_checkpoint(tmp_path, t5.configuration(s), t5.weights(s), tokenizer(t5.N_VOCAB))
    convert(hf, tmp_path / "t5.gguf", outtype="f32")
    with pytest.raises(ModelFileError, match="predicts none of its own"):
        evaluate(context(tmp_path / "t5.gguf", 64), {"x": LICENSE}, n_ctx=64)

    class Output:
        logits = np.full((31, 512), np.nan, np.float32)

    process = llm.process
    monkeypatch.setattr(
        llm, "process", lambda batch: Output if batch.outputs.any() else process(batch)
    )
    with pytest.raises(ModelFileError, match="no numbers"):
        evaluate(llm, {"x": LICENSE}, n_ctx=64)
    assert llm.length(0) == 0
