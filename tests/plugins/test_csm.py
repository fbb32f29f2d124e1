"""A small random CSM against what transformers makes of it, from the checkpoint on."""

import msgspec
import numpy as np
import pytest
from harness import csm
from harness.fixtures import DATA
from harness.published import save_tensors, tokenizer, write_checkpoint
from mtpcore_csm import checkpoint

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
from mtpcore.plugin import Config, depth_config, long_context_factors
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
    """After a prompt of text and speech: states, first codes, and all codes after them."""
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


def test_heads_need_not_divide_the_width_of_the_depth_decoder(tmp_path):
    """Without ``head_dim`` transformers rounds the quotient down; a model file has to say it."""
    config, tensors = csm.configuration(), csm.weights()
    del config["depth_decoder_config"]["head_dim"]
    config["depth_decoder_config"]["num_attention_heads"] = 5
    at = "depth_decoder.model.layers.{}.self_attn.{}_proj.weight"
    for n in range(csm.N_DEPTH_LAYERS):
        for x, shape in {"q": (20, 24), "k": (4, 24), "v": (4, 24), "o": (24, 20)}.items():
            tensors[at.format(n, x)] = np.zeros(shape, np.float32)
    write_checkpoint(tmp_path / "hf", config, tensors, tokenizer(csm.N_TEXT))
    convert(tmp_path / "hf", tmp_path / "model.gguf")
    with load_model(tmp_path / "model.gguf") as model:
        assert model.hparams.depth.head_width == 4
        assert model.program("depth")


def test_a_depth_decoder_that_its_graph_would_refuse_is_not_written(tmp_path):
    tensors = csm.weights()
    tensors["depth_decoder.model.layers.0.self_attn.o_proj.weight"] = np.zeros((24, 32), np.float32)
    with pytest.raises(ModelFileError, match="does not fit its tensors"):
        write(tmp_path, tensors)
    assert not (tmp_path / "model.gguf").exists()


def test_the_codec_is_left_out_and_a_missing_table_is_an_error(tmp_path):
    w = csm.weights()
    _, left_out = write(tmp_path / "a", {**w, "codec_model.encoder.weight": np.zeros((2, 2), "f4")})
    assert left_out == {"codec_model.encoder.weight": "of no use: codec_model.*"}
    del w[TABLE]
    with pytest.raises(ModelFileError):
        write(tmp_path / "b", w)
    assert not (tmp_path / "b" / "model.gguf").exists()


@pytest.mark.parametrize("outtype", ["f32", "q8_0"])
def test_the_release_in_torchtunes_layout_makes_the_same_file(tmp_path, outtype):
    """As transformers' layout with the table of codes under the backbone's name, as published."""
    w = csm.weights()
    wanted, _ = write(tmp_path / "a", {COPY: w.pop(TABLE), **w}, outtype)
    made, left_out = write(tmp_path / "b", csm.torchtune(csm.weights()), outtype)
    assert not left_out
    assert made.read_bytes() == wanted.read_bytes()


def test_the_releases_own_configuration(path, tmp_path, monkeypatch):
    """It names sizes by a word, and no architecture."""
    whole = csm.configuration()
    codes = ("num_codebooks", "vocab_size")
    depth = whole["depth_decoder_config"]
    sizes = {"one": {**whole}, "two": {k: v for k, v in depth.items() if k not in codes}}
    monkeypatch.setattr(checkpoint, "FLAVORS", sizes)
    own = {
        "backbone_flavor": "one",
        "decoder_flavor": "two",
        "text_vocab_size": csm.N_TEXT,
        "audio_vocab_size": csm.N_CODES,
        "audio_num_codebooks": csm.N_CODEBOOKS,
    }
    folder = tmp_path / "hf"
    write_checkpoint(folder, own, csm.torchtune(csm.weights()), tokenizer(csm.N_TEXT))
    convert(folder, tmp_path / "model.gguf", outtype="f32")
    with load_model(path) as wanted, load_model(tmp_path / "model.gguf") as model:
        lengths = (csm.N_CTX, 2048)
        assert (wanted.hparams.n_ctx_train, model.hparams.n_ctx_train) == lengths
        same = msgspec.structs.replace(model.hparams, n_ctx_train=csm.N_CTX)
        assert same == wanted.hparams
        for name, tensor in wanted.tensors.items():
            own_name = name.replace("depth.audio", "audio")
            assert np.array_equal(tensor.array(), model.tensors[own_name].array())
    own["decoder_flavor"] = "three"
    write_checkpoint(folder, own, csm.torchtune(csm.weights()), tokenizer(csm.N_TEXT))
    with pytest.raises(ModelFileError, match="decoder_flavor is none of one, two: 'three'"):
        convert(folder, tmp_path / "other.gguf")


def test_published_sizes():
    """The words of the release, and what transformers' configuration of CSM-1B says."""
    own = {"backbone_flavor": "llama-1B", "decoder_flavor": "llama-100M", "text_vocab_size": 128256}
    own |= {"audio_vocab_size": 2051, "audio_num_codebooks": 32}
    config = Config({**own, **checkpoint.completed(Config(own))})
    inner = depth_config(config, checkpoint.DEPTH)
    assert [config[name] for name in ("hidden_size", "num_hidden_layers")] == [2048, 16]
    assert [inner[name] for name in ("hidden_size", "num_hidden_layers")] == [1024, 4]
    for one, original, high, low in ((config, 1024, 0.5, 0.125), (inner, 16, 2**-7, 2**-9)):
        scaling = {"rope_type": "llama3", "factor": 32.0, "high_freq_factor": high}
        scaling |= {"low_freq_factor": low, "original_max_position_embeddings": original}
        other = Config({**one.values, "rope_scaling": scaling})
        assert np.array_equal(long_context_factors(one), long_context_factors(other))


def test_a_folder_with_both_layouts(path, tmp_path):
    """Sesame's has both; the configuration says which files are transformers'."""
    config = {**csm.configuration(), "transformers_weights": "transformers.safetensors.index.json"}
    folder = write_checkpoint(tmp_path / "hf", config, csm.weights(), tokenizer(csm.N_TEXT), 2)
    (folder / "model.safetensors.index.json").rename(folder / config["transformers_weights"])
    save_tensors(folder / "model.safetensors", csm.torchtune(csm.weights(seed=1)))
    convert(folder, tmp_path / "model.gguf", outtype="f32")
    assert (tmp_path / "model.gguf").read_bytes() == path.read_bytes()
    for file in folder.glob("*-of-00002.safetensors"):
        file.unlink()
    (folder / config["transformers_weights"]).unlink()
    convert(folder, tmp_path / "other.gguf", outtype="f32")  # the release alone was fetched
    assert (tmp_path / "other.gguf").read_bytes() != path.read_bytes()


@pytest.mark.parametrize("outtype", ["f32", "f16", "q8_0"])
def test_graphs_have_the_bits_of_their_definition(path, tmp_path, outtype):
    file = write(tmp_path, csm.weights(), outtype)[0] if outtype != "f32" else path
    assert check_graphs(Subject("csm", str(file))) > 0
