"""Small random gpt-oss models against what transformers makes of them, from the checkpoint on."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants
from harness import eagle3, gpt_oss
from harness.fixtures import DATA
from harness.published import bf16, tokenizer, write_checkpoint
from harness.witness import hear, needs_llama_cpp

from mtpcore import Batch, Context, Sampling, load_model
from mtpcore.conversion import convert
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file, write_model_file
from mtpcore.testing import Batching, Subject, Texts, check_graphs, check_rows, check_texts

backends = pytest.mark.parametrize("backend", ["cpu", "reference"])
CLOSE = 2e-4


def write(folder, s, **changed):
    """Write a checkpoint, and convert it; return the model file."""
    tensors = gpt_oss.published(s, gpt_oss.weights(s))
    config = gpt_oss.configuration(s) | changed
    write_checkpoint(folder / "hf", config, tensors, tokenizer(gpt_oss.N_VOCAB))
    convert(folder / "hf", folder / "model.gguf", outtype="f32")
    return folder / "model.gguf"


@pytest.fixture(scope="module", params=gpt_oss.SHAPES)
def made(request, tmp_path_factory):
    """Return a shape, its model and its references."""
    s = gpt_oss.SHAPES[request.param]
    with np.load(DATA / "gpt-oss" / "refs.npz") as file:
        refs = {
            name.partition("/")[2]: file[name] for name in file if name.startswith(request.param)
        }
    with load_model(write(tmp_path_factory.mktemp("gpt-oss"), s)) as model:
        yield s, model, refs


def open_context(model, backend, **settings):
    return Context(model, 64, **{"kv_dtype": "f32", "threads": 1, "backend": backend, **settings})


@backends
def test_trunk(made, backend):
    """Hidden states, every layer's input and logits; a text in one piece and in several.

    The kernels of MXFP4 multiply activations of eight bits: they meet the references nearly.
    """
    s, model, refs = made
    layers = [f"layer_input:{n}" for n in range(s.n_layers)]
    context = open_context(model, backend, taps=["hidden", *layers])
    text = gpt_oss.tokens()
    outs = [context.process(Batch.of(part, pos=at, outputs="all"))
            for at, part in ((0, text[:23]), (23, text[23:24]), (24, text[24:]))]  # fmt: skip
    found = {
        "logits": np.concatenate([out.logits for out in outs]),
        "hidden": np.concatenate([out.tap("hidden") for out in outs]),
        "layers": np.stack([np.concatenate([out.tap(n) for out in outs]) for n in layers]),
    }
    for name, rows in found.items():
        apart = np.abs(rows - refs[name])
        if s.packed and backend == "cpu":
            assert 0 < np.median(apart) < 0.02 * np.abs(refs[name]).max(), name
        else:
            assert apart.max() < CLOSE, name


def test_published_blocks_keep_their_values(made):
    """MXFP4 stays MXFP4, block by block; rows of gate and up alternate."""
    s, model, _ = made
    w = gpt_oss.weights(s)
    for n in range(s.n_layers):
        fused = w[f"model.layers.{n}.mlp.experts.gate_up_proj"].swapaxes(1, 2)
        down = w[f"model.layers.{n}.mlp.experts.down_proj"].swapaxes(1, 2)
        wanted = {"ffn_gate_exps": fused[:, ::2], "ffn_up_exps": fused[:, 1::2]}
        for name, values in {**wanted, "ffn_down_exps": down}.items():
            tensor = model.tensors[f"blk.{n}.{name}.weight"]
            assert tensor.type_name == ("MXFP4" if s.packed else "F32")
            raw = tensor.raw().reshape(*tensor.shape[:-1], -1)
            held = quants.dequantize(raw, Type.MXFP4) if s.packed else tensor.array()
            assert np.array_equal(held, values)


def test_plain_experts_of_sixteen_bits(tmp_path):
    s = gpt_oss.SHAPES["unscaled"]
    w = gpt_oss.weights(s)
    tensors = {name: bf16(values) for name, values in gpt_oss.published(s, w).items()}
    config = gpt_oss.configuration(s)
    write_checkpoint(tmp_path / "hf", config, tensors, tokenizer(gpt_oss.N_VOCAB))
    convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="bf16")
    with load_model(tmp_path / "model.gguf") as model:
        assert model.tensors["blk.1.ffn_up_exps.weight"].type_name == "BF16"
        assert model.tensors["blk.1.ffn_up_exps.bias"].type_name == "F32"
        assert model.tensors["blk.1.ffn_gate_inp.weight"].type_name == "F32"
        out = open_context(model, "cpu").process(Batch.of(gpt_oss.tokens(8), outputs="all"))
        assert np.isfinite(out.logits).all()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"layer_types": ["full_attention"] * 2}, "do not alternate"),
        ({"swiglu_limit": 3.0}, "swiglu_limit"),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "truncate"),
    ],
)
def test_what_files_do_not_say_is_refused(changed, said, tmp_path):
    with pytest.raises(ModelFileError, match=said):
        write(tmp_path, gpt_oss.SHAPES["unscaled"], **changed)


@pytest.mark.parametrize("broken", ["lacking scales", "other rows", "other experts", "fractions"])
def test_broken_blocks_are_refused(broken, tmp_path):
    s = gpt_oss.SHAPES["as published"]
    tensors = gpt_oss.published(s, gpt_oss.weights(s))
    scales = "model.layers.1.mlp.experts.down_proj_scales"
    if broken == "lacking scales":
        del tensors[scales]
    elif broken == "fractions":
        name = scales.replace("scales", "blocks")
        tensors[name] = tensors[name].astype(np.float32)
    else:
        tensors[scales] = tensors[scales][:, :-1] if broken == "other rows" else tensors[scales][1:]
    config = gpt_oss.configuration(s)
    write_checkpoint(tmp_path / "hf", config, tensors, tokenizer(gpt_oss.N_VOCAB))
    with pytest.raises(ModelFileError, match=r"down_proj"):
        convert(tmp_path / "hf", tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()


# With an EAGLE-3 head


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Return the subject of the published layout and a head of random weights."""
    folder, s = tmp_path_factory.mktemp("pair"), gpt_oss.SHAPES["as published"]
    sizes = {"width": gpt_oss.WIDTH, "target_width": gpt_oss.WIDTH, "n_vocab": gpt_oss.N_VOCAB}
    head = eagle3.Variant(n_layers=s.n_layers, layers=(1, 2, 3), **sizes)
    return Subject(
        "eagle3-gpt-oss", str(write(folder, s)), str(eagle3.write_head(folder / "eagle3", head))
    )


@pytest.mark.parametrize("kv_dtype", ["f16", "q8_0"])
def test_rows_do_not_depend_on_their_company(pair, kv_dtype):
    check_rows(pair, Batching(chunk=96), kv_dtype)
    check_rows(pair, Batching(chunk=7, n_batch=5, threads=2, neighbours=2), kv_dtype)


def test_graphs_are_their_definition(pair):
    assert check_graphs(pair, threads=2) > 700


def test_texts_do_not_depend_on_drafts(pair):
    rates = [
        check_texts(pair, Texts(k=k, sampling=Sampling(temperature=t, seed=5), n_batch=n))
        for k, t, n in ((3, 0.0, 512), (2, 1.2, 5))
    ]
    assert max(rates) > 0.02


# llama.cpp


@needs_llama_cpp
@pytest.mark.parametrize("name", gpt_oss.SHAPES)
def test_llama_cpp_makes_the_same_of_the_file(name, tmp_path):
    """Its ramp of YaRN begins and ends at whole pairs: so does that of the file it gets here.

    Experts in MXFP4 are multiplied with activations of eight bits, by both.
    """
    s, n_ctx = gpt_oss.SHAPES[name], 1138
    rotation = gpt_oss.configuration(s)["rope_parameters"]
    if s.scaled:  # pairs 1.0001 to 2.9999 of eight
        base = float((n_ctx / (2 * np.pi)) ** (8 / 2.9999))
        rotation |= {"rope_theta": base, "original_max_position_embeddings": n_ctx}
        rotation["beta_fast"] = 32.0
    path = write(tmp_path, s, rope_parameters=rotation)
    heard = hear(path, gpt_oss.tokens(30).tolist(), 8, tmp_path / "heard.npz")
    with load_model(path) as model:
        out = open_context(model, "cpu").process(Batch.of(heard.text, outputs="all"))
    apart = np.abs(out.logits - heard.logits).max(1) / np.abs(heard.logits).max()
    assert np.median(apart) < (0.02 if s.packed else 1e-4)


def test_layers_with_a_window_may_have_a_base_of_their_own(tmp_path):
    """As llama.cpp reads it: the scaling of the rotation is all layers'."""
    s = gpt_oss.SHAPES["plain experts"]
    path = write(tmp_path, s)
    with open_model_file(path) as file:
        metadata = {k: v for k, v in file.metadata.items() if k != "general.architecture"}
        tensors = {name: tensor.array() for name, tensor in file.tensors.items()}

    def logits(**bases):
        told = metadata | {f"gpt-oss.rope.{name}": base for name, base in bases.items()}
        write_model_file(tmp_path / "told.gguf", "gpt-oss", told, tensors)
        with load_model(tmp_path / "told.gguf") as model:
            ropes = [model.hparams.kind(n).rope.frequencies for n in range(2)]
            out = open_context(model, "cpu").process(Batch.of(gpt_oss.tokens(8), outputs="all"))
            return ropes, out.logits.copy()

    (near, far), plain = logits()
    assert near == far
    assert np.array_equal(logits(freq_base_swa=1000.0)[1], plain)
    (own, same), other = logits(freq_base_swa=50.0)
    assert same == far
    assert own == logits(freq_base=50.0)[0][1]
    assert not np.allclose(other, plain)
