"""Families with other shapes against what transformers makes of them, and their definition."""

import numpy as np
import pytest
from harness import csm, gemma4, gpt_oss, published_families, qwen_tts, t5
from harness.cuda_definition import definition
from harness.fixtures import DATA
from harness.published import tokenizer, write_checkpoint
from harness.speech_prompts import rows_of

from mtpcore import Batch, Context, link, load_model
from mtpcore.conversion import convert
from mtpcore.testing import Subject, check_drafts, check_readers

CLOSE = 2e-4


def model_file(folder, config, tensors, n_vocab):
    write_checkpoint(folder / "hf", config, tensors, tokenizer(n_vocab))
    convert(folder / "hf", folder / "model.gguf", outtype="f32")
    return folder / "model.gguf"


def references(family, name=None):
    with np.load(DATA / family / "refs.npz") as file:
        if name is None:
            return {key: file[key] for key in file}
        return {key.partition("/")[2]: file[key] for key in file if key.startswith(f"{name}/")}


def check_trunk(path, backend, text, refs):
    """Compare logits and hidden states of a text in three pieces."""
    with load_model(path) as model:
        context = Context(model, 64, kv_dtype="f32", backend=backend, taps=["hidden"])
        parts = ((0, text[:23]), (23, text[23:24]), (24, text[24:]))
        outs = [context.process(Batch.of(part, pos=at, outputs="all")) for at, part in parts]
    for found, wanted in (
        (np.concatenate([out.logits for out in outs]), refs["logits"]),
        (np.concatenate([out.tap("hidden") for out in outs]), refs["hidden"]),
    ):
        assert np.abs(found - wanted).max() < CLOSE


@pytest.mark.parametrize("name", gemma4.SHAPES)
def test_gemma4(name, backend, tmp_path):
    """Windows, keys that are values, experts, embeddings by layer, layers that share memory."""
    s = gemma4.SHAPES[name]
    tensors = gemma4.published(s, gemma4.weights(s))
    path = model_file(tmp_path, gemma4.configuration(s), tensors, gemma4.N_VOCAB)
    check_trunk(path, backend, gemma4.tokens(), references("gemma4", name))


@pytest.mark.parametrize("name", ["ApertusForCausalLM", "Gemma3nForCausalLM"])
def test_published_families(name, backend, tmp_path):
    """xIELU; streams that are mixed and corrected, and gates cut by their spread."""
    family, text = published_families.known()[name], published_families.tokens()
    tensors = published_families.tensors(family["shapes"])
    path = model_file(tmp_path, family["config"], tensors, published_families.N_VOCAB)
    with load_model(path) as model:
        context = Context(model, 64, kv_dtype="f32", backend=backend)
        parts = ((0, text[:9]), (9, text[9:10]), (10, text[10:]))
        outs = [context.process(Batch.of(part, pos=at, outputs="all")) for at, part in parts]
    found = np.concatenate([out.logits for out in outs])
    assert np.abs(found - published_families.logits(name)).max() < CLOSE


def test_gpt_oss(backend, tmp_path):
    """Sinks, biases and experts with limits; the kernels of MXFP4 are the definition's."""
    s = gpt_oss.SHAPES["plain experts"]
    tensors = gpt_oss.published(s, gpt_oss.weights(s))
    path = model_file(tmp_path, gpt_oss.configuration(s), tensors, gpt_oss.N_VOCAB)
    check_trunk(path, backend, gpt_oss.tokens(), references("gpt-oss", "plain experts"))


@pytest.mark.parametrize("name", t5.SHAPES)
def test_t5(name, backend, tmp_path):
    """A bias by distance in both directions, and rows that an encoder delivers."""
    s, refs = t5.SHAPES[name], references("t5", name)
    path = model_file(tmp_path, t5.configuration(s), t5.weights(s), t5.N_VOCAB)
    with load_model(path) as model:
        cross = link(Context(model, 192, kv_dtype="f32", backend=backend, n_batch=32))
        read = cross.contexts["encoder"].process(Batch.of(t5.source(s), outputs="none"))
        assert np.abs(read.tap("hidden") - refs["hidden"]).max() < CLOSE
        out = cross.llm.process(Batch.of(t5.text(s), outputs="all"))
        assert np.abs(out.logits - refs["logits"]).max() < CLOSE


def test_csm(backend, tmp_path):
    """Codes in and out, and a table and a matrix for each position."""
    refs = references("csm")
    path = model_file(tmp_path, csm.configuration(), csm.weights(), csm.N_TEXT)
    with load_model(path) as model:
        cross = link(Context(model, 64, kv_dtype="f32", backend=backend))
        cross.llm.process(Batch.of(csm.text()))
        rows = csm.speech()
        for i, frame in enumerate(refs["frames"]):
            out = cross.llm.process(Batch(codes=rows, pos=cross.llm.length(0)))
            assert np.abs(out.logits[0] - refs["first"][i]).max() < CLOSE
            assert np.abs(out.tap("hidden")[-1] - refs["hidden"][i]).max() < CLOSE
            assert np.array_equal(cross.frame([0])[0], frame)
            rows = frame[None]


def test_qwen_tts(backend, tmp_path):
    """Text beside codes, a voice's row, and more first codes than others."""
    refs, speeches = references("qwen_tts"), list(qwen_tts.SPEECHES)
    i = speeches.index("a row of a voice")
    path = model_file(tmp_path, qwen_tts.configuration(), qwen_tts.weights(), qwen_tts.N_TEXT)
    prompt, beside = rows_of(qwen_tts.SPEECHES[speeches[i]])
    with load_model(path) as model:
        cross = link(Context(model, 64, kv_dtype="f32", backend=backend))
        out = cross.llm.process(prompt.batch())
        for n, frame in enumerate(refs[f"frames{i}"][:4]):
            assert np.abs(out.logits[0] - refs[f"first{i}"][n]).max() < CLOSE
            assert np.abs(out.tap("hidden")[-1] - refs[f"hidden{i}"][n]).max() < CLOSE
            assert np.array_equal(cross.frame([0])[0], frame)
            batch = Batch([beside[n]], codes=frame[None], pos=cross.llm.length(0))
            out = cross.llm.process(batch)


def test_gemma4_assistant(backend, tmp_path):
    """A drafter that reads the target's memory, and logits of some clusters alone."""
    a = gemma4.ASSISTANTS["clusters"]
    s, texts = gemma4.SHAPES[a.target], tokenizer(gemma4.N_VOCAB)
    tensors = gemma4.published(s, gemma4.weights(s))
    write_checkpoint(tmp_path / "target", gemma4.configuration(s), tensors, texts)
    write_checkpoint(tmp_path / "drafter", gemma4.assistant_config(a), gemma4.assistant_weights(a))
    files = tmp_path / "gemma.gguf", tmp_path / "mtp-gemma.gguf"
    convert(tmp_path / "target", files[0], outtype="q8_0")
    convert(tmp_path / "drafter", files[1], outtype="q8_0", target=tmp_path / "target")
    subject = Subject("assistant", *map(str, files), backend=backend, definition=definition())
    assert check_readers(subject) == 6
    assert check_drafts(subject, n_tokens=4) == 24
