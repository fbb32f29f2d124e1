"""A small random CSM against what transformers makes of it, from the checkpoint on."""

import numpy as np
import pytest
from harness import csm
from harness.fixtures import DATA
from harness.published import tokenizer, write_checkpoint

from mtpcore import (
    Batch,
    Codes,
    Context,
    Frames,
    ModelFileError,
    Prompt,
    Sampling,
    link,
    load_model,
)
from mtpcore.conversion import convert
from mtpcore.testing import check_graphs
from mtpcore.testing.subject import Subject

backends = pytest.mark.parametrize("backend", ["cpu", "reference"])
CLOSE = 2e-4
TABLE = "depth_decoder.model.embed_tokens.weight"
COPY = "backbone_model.embed_tokens.embed_audio_tokens.weight"


@pytest.fixture(scope="module")
def refs():
    with np.load(DATA / "csm" / "refs.npz") as file:
        return {name: file[name] for name in file}


def write(folder, tensors, outtype="f32"):
    write_checkpoint(folder / "hf", csm.configuration(), tensors, tokenizer(csm.N_TEXT))
    left_out = convert(folder / "hf", folder / "model.gguf", outtype=outtype)
    return folder / "model.gguf", left_out


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("csm"), csm.weights())[0]


def open_cross(path, backend="cpu", **settings):
    sizes = {"kv_dtype": "f32", "threads": 1, "backend": backend, **settings}
    return link(Context(load_model(path), 64, **sizes))


@backends
def test_every_frame(path, refs, backend):
    """Behind a prompt of text and speech: states, first codes, and all codes behind them."""
    cross = open_cross(path, backend)
    cross.llm.process(Batch.of(csm.text()))
    rows = csm.speech()
    for i, frame in enumerate(refs["frames"]):
        out = cross.llm.process(Batch(codes=rows, pos=cross.llm.length(0)))
        assert np.abs(out.logits[0] - refs["first"][i]).max() < CLOSE
        assert np.abs(out.tap("hidden")[-1] - refs["hidden"][i]).max() < CLOSE
        assert np.array_equal(cross.frame([0])[0], frame)
        rows = frame[None]


@backends
def test_logits_of_the_depth_decoder(path, refs, backend):
    """A whole frame in one pass: each position has a table and a matrix of its own."""
    context = Context(
        load_model(path), 8, graph_type="depth", kv_dtype="f32", threads=1, backend=backend
    )
    for frame, hidden, logits in zip(refs["frames"], refs["hidden"], refs["depth"], strict=True):
        rows = np.zeros((csm.N_CODEBOOKS, csm.WIDTH), np.float32)
        rows[0] = hidden
        batch = Batch([-1, *frame[:-1]], embeddings=rows, outputs=[False, True, True, True, True])
        assert np.abs(context.process(batch).logits - logits).max() < CLOSE
        context.remove(0)


@backends
def test_what_generate_makes(path, refs, backend):
    frames = Frames(open_cross(path, backend), sampling=Sampling.greedy())
    made = list(frames.generate(csm.text(), max_frames=len(refs["spoken"])))
    assert np.array_equal(made, refs["spoken"])
    prompt = Prompt(csm.text(), Codes(csm.speech()))
    assert np.array_equal(list(frames.generate(prompt, max_frames=12)), refs["frames"])


def test_either_of_the_tied_tables_will_do(path, refs, tmp_path):
    w = csm.weights()
    both, left_out = write(tmp_path / "both", {**w, COPY: w[TABLE]})
    assert list(left_out) == [TABLE]
    other, _ = write(tmp_path / "other", {COPY: w.pop(TABLE), **w})
    for file in (both, other):
        with load_model(file) as model:
            assert "depth.audio_embd.weight" not in model.tensors
        frames = Frames(open_cross(file), sampling=Sampling.greedy())
        prompt = Prompt(csm.text(), Codes(csm.speech()))
        assert np.array_equal(list(frames.generate(prompt, max_frames=12)), refs["frames"])


def test_tables_of_their_own(tmp_path):
    """A checkpoint that ties nothing keeps both."""
    w = csm.weights()
    file, _ = write(tmp_path, {**w, COPY: w[TABLE][::-1].copy()})
    with load_model(file) as model:
        assert np.array_equal(model.tensors["audio_embd.weight"].array(), w[TABLE][::-1])
        assert np.array_equal(model.tensors["depth.audio_embd.weight"].array(), w[TABLE])


def test_the_codec_is_left_out_and_a_missing_table_is_an_error(tmp_path):
    w = csm.weights()
    _, left_out = write(tmp_path / "a", {**w, "codec_model.encoder.weight": np.zeros((2, 2), "f4")})
    assert left_out == {"codec_model.encoder.weight": "of no use"}
    del w[TABLE]
    with pytest.raises(ModelFileError):
        write(tmp_path / "b", w)
    assert not (tmp_path / "b" / "model.gguf").exists()


@pytest.mark.parametrize("outtype", ["f32", "f16", "q8_0"])
def test_graphs_have_the_bits_of_their_definition(path, tmp_path, outtype):
    file = write(tmp_path, csm.weights(), outtype)[0] if outtype != "f32" else path
    assert check_graphs(Subject("csm", str(file))) > 0
