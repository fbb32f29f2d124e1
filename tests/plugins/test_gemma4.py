"""Small random Gemma 4 models against what transformers makes of them, from the checkpoint on."""

import json

import numpy as np
import pytest
from harness import eagle3, gemma4
from harness.fixtures import DATA
from harness.published import tokenizer, write_checkpoint
from harness.witness import hear, needs_llama_cpp

from mtpcore import Batch, Context, Generator, Image, Prompt, Rows, Sampling, load_model
from mtpcore.conversion import convert
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file, write_model_file
from mtpcore.testing import Batching, Subject, Texts, check_graphs, check_rows, check_texts

backends = pytest.mark.parametrize("backend", ["cpu", "reference"])
SHARING = "embeddings by layer, sharing"
CLOSE = 2e-4


def write(folder, s, **changed):
    """Write a checkpoint, and convert it; return the model file."""
    config = gemma4.configuration(s)
    config.get("text_config", config).update(changed)
    tensors = gemma4.published(s, gemma4.weights(s))
    write_checkpoint(folder / "hf", config, tensors, tokenizer(gemma4.N_VOCAB))
    convert(folder / "hf", folder / "model.gguf", outtype="f32")
    return folder / "model.gguf"


def references(name):
    """Return what transformers made of a shape."""
    with np.load(DATA / "gemma4" / "refs.npz") as file:
        return {key.partition("/")[2]: file[key] for key in file if key.startswith(f"{name}/")}


@pytest.fixture(scope="module", params=gemma4.SHAPES)
def made(request, tmp_path_factory):
    """Return a shape, its model and its references."""
    s = gemma4.SHAPES[request.param]
    with load_model(write(tmp_path_factory.mktemp("gemma4"), s)) as model:
        yield s, model, references(request.param)


def open_context(model, backend, **settings):
    return Context(model, 64, **{"kv_dtype": "f32", "threads": 1, "backend": backend, **settings})


@backends
def test_trunk(made, backend):
    """Hidden states, every layer's input and logits; a text in one piece and in several."""
    s, model, refs = made
    layers = [f"layer_input:{n}" for n in range(len(s.kinds))]
    context, text = open_context(model, backend, taps=["hidden", *layers]), gemma4.tokens()
    outs = [context.process(Batch.of(part, pos=at, outputs="all"))
            for at, part in ((0, text[:23]), (23, text[23:24]), (24, text[24:]))]  # fmt: skip
    found = {
        "logits": np.concatenate([out.logits for out in outs]),
        "hidden": np.concatenate([out.tap("hidden") for out in outs]),
        "layers": np.stack([np.concatenate([out.tap(n) for out in outs]) for n in layers]),
    }
    for name, rows in found.items():
        assert np.abs(rows - refs[name]).max() < CLOSE, name
    assert np.abs(refs["logits"]).max() > 1


@backends
def test_one_matrix_for_queries_keys_and_values(made, backend, tmp_path):
    """As llama.cpp's converter writes with ``--fuse-qkv``, where a checkpoint has all three.

    Published checkpoints have them in layers that share, too. The rows are the same, bit for bit.
    """
    s, model, refs = made
    with open_model_file(model.path) as file:
        tensors = {t.name: np.array(t.array()) for t in file.tensors.values()}
        metadata = dict(file.metadata)
    n_fused = 0
    for n in range(len(s.kinds)):
        q, k, v = (f"blk.{n}.attn_{name}.weight" for name in "qkv")
        if model.hparams.stored_by(n) != n:
            kind = model.hparams.kinds[n]
            shape = kind.n_kv_heads * kind.head_width, gemma4.WIDTH
            tensors |= {name: np.ones(shape, np.float32) for name in (k, v)}
        if v in tensors:
            rows = np.concatenate([tensors.pop(name) for name in (q, k, v)])
            tensors[f"blk.{n}.attn_qkv.weight"] = rows
            n_fused += 1
    assert n_fused == (len(s.kinds) if not s.k_eq_v else s.kinds.count(gemma4.NEAR))
    write_model_file(tmp_path / "fused.gguf", "gemma4", metadata, tensors)
    batch = Batch.of(gemma4.tokens(), outputs="all")
    with load_model(tmp_path / "fused.gguf") as fused:
        found = open_context(fused, backend).process(batch).logits
    assert np.abs(found - refs["logits"]).max() < CLOSE
    if backend == "cpu":
        assert np.array_equal(found, open_context(model, backend).process(batch).logits)


@backends
def test_rows_of_an_image_see_each_other(made, backend):
    """In layers with a window, and in larger models only; one image is longer than the window."""
    s, model, refs = made
    assert model.program().sees_spans == s.spans
    if s.spans:
        check_images(model, backend, refs)


def check_images(model, backend, refs):
    """Compare rows of a prompt with images, and see that they are not causal."""
    texts, (first, second) = gemma4.with_images()
    images = Image(first, nx=4, ny=3), Image(second, nx=2, ny=2)
    prompt = Prompt(texts[0], images[0], texts[1], images[1], texts[2])
    context = open_context(model, backend, taps=["hidden"])
    out = context.process(prompt.batch(n_axes=context.program.n_axes, outputs="all"))
    assert np.abs(out.logits - refs["logits with images"]).max() < CLOSE
    assert np.abs(out.tap("hidden") - refs["hidden with images"]).max() < CLOSE
    causal = Prompt(texts[0], Rows(first), texts[1], Rows(second), texts[2])
    other = open_context(model, backend).process(causal.batch(outputs="all"))
    assert np.abs(other.logits - out.logits)[8:].max() > 0.1


@backends
def test_unified_checkpoints(backend, tmp_path):
    """Their class has no towers: patches and sound are projected at once, beside the model."""
    refs = references("unified")
    with load_model(write(tmp_path, gemma4.UNIFIED)) as model:
        assert model.architecture == "gemma4"
        layers = [f"layer_input:{n}" for n in range(len(gemma4.UNIFIED.kinds))]
        context = open_context(model, backend, taps=["hidden", *layers])
        out = context.process(Batch.of(gemma4.tokens(), outputs="all"))
        assert np.abs(out.logits - refs["logits"]).max() < CLOSE
        assert np.abs(out.tap("hidden") - refs["hidden"]).max() < CLOSE
        for rows, wanted in zip(map(out.tap, layers), refs["layers"], strict=True):
            assert np.abs(rows - wanted).max() < CLOSE
        check_images(model, backend, refs)


def test_suppressed_tokens(tmp_path):
    """As the 12B model's ``generation_config.json`` names them."""
    path, prompt = write(tmp_path, gemma4.UNIFIED), gemma4.tokens(9).tolist()

    def text(path, **biases):
        with load_model(path) as model:
            generator = Generator(Context(model, 64), sampling=Sampling(temperature=0.0, **biases))
            return list(generator.generate(prompt, max_tokens=20, ignore_eos=True))

    suppressed = sorted({*text(path)[:2]})
    more = json.dumps({"suppress_tokens": suppressed})
    (tmp_path / "hf" / "generation_config.json").write_text(more)
    convert(tmp_path / "hf", tmp_path / "other.gguf", outtype="f32")
    found = text(tmp_path / "other.gguf")
    assert not {*suppressed} & {*found}
    assert found == text(path, logit_bias=dict.fromkeys(suppressed, -np.inf))


def test_files_that_do_not_say_so_are_known_by_their_embeddings(made, tmp_path):
    """llama.cpp writes no such key; where the softcap's is missing, it takes 30."""
    s, model, _ = made
    with open_model_file(model.path) as file:
        tensors = {t.name: np.array(t.array()) for t in file.tensors.values()}
        metadata = dict(file.metadata)
    assert metadata.pop("gemma4.attention.image_spans") == s.spans
    assert metadata.pop("gemma4.final_logit_softcapping") == (s.softcap or 0)
    write_model_file(tmp_path / "other.gguf", "gemma4", metadata, tensors)
    with load_model(tmp_path / "other.gguf") as other:
        assert other.program().sees_spans == s.spans
        assert other.hparams.softcap == 30.0


def test_only_some_layers_store(made):
    """Layers that share have no keys and values, in the file or in memory."""
    s, model, _ = made
    storing = range(len(s.kinds) - s.n_sharing)
    assert [layer.layer for layer in model.program().memory] == list(storing)
    assert {n for n in model.tensors if "attn_k" in n} == {
        f"blk.{n}.attn_{name}.weight" for n in storing for name in ("k", "k_norm")
    }
    windows = {layer.layer: layer.window for layer in model.program().memory}
    near = [s.kinds[n] == gemma4.NEAR for n in storing]
    assert windows == {n: gemma4.WINDOW * near[n] for n in storing}


@backends
def test_embedding_rows_are_not_scaled(made, backend):
    """A raw row stands for a token whose scaled embedding it is, but for embeddings by layer."""
    s, model, _ = made
    text, at = gemma4.tokens(8).copy(), np.arange(8) % 2 == 0
    text[at] = 0  # an image's rows count as token 0 there
    table = gemma4.weights(s)["model.embed_tokens.weight"]
    rows = table[text] * np.float32(gemma4.WIDTH**0.5)
    by_token = open_context(model, backend).process(Batch.of(text, outputs="all"))
    mixed = Batch(np.where(at, -1, text).astype(np.int32), embeddings=rows, outputs="all")
    by_row = open_context(model, backend).process(mixed)
    assert np.array_equal(by_token.logits, by_row.logits)


def rotations(full_attention="proportional", sliding_attention="default"):
    kinds = {"full_attention": full_attention, "sliding_attention": sliding_attention}
    return {name: {"rope_type": kind, "rope_theta": 1e4} for name, kind in kinds.items()}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hidden_activation": "silu"}, "hidden_activation"),
        ({"use_bidirectional_attention": "all"}, "bidirectional"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"rope_parameters": rotations(full_attention="yarn")}, "yarn"),
        ({"rope_parameters": rotations(sliding_attention="linear")}, "linear"),
        ({"rope_parameters": {"full_attention": {"rope_type": "proportional"}}}, "rope_theta"),
        ({"num_kv_shared_layers": 9}, "num_kv_shared_layers"),
    ],
)
def test_what_files_do_not_say_is_refused(changed, said, tmp_path):
    with pytest.raises(ModelFileError, match=said):
        write(tmp_path, gemma4.SHAPES["dense, keys are values"], **changed)


def test_a_kind_that_nothing_stores_is_refused(tmp_path):
    """The first layer with a window shares: there is none before it."""
    path = write(tmp_path, gemma4.SHAPES[SHARING])
    with open_model_file(path) as file:
        tensors = {t.name: np.array(t.array()) for t in file.tensors.values()}
        metadata = {**file.metadata, "gemma4.attention.shared_kv_layers": 5}
    write_model_file(tmp_path / "other.gguf", "gemma4", metadata, tensors)
    with pytest.raises(ModelFileError, match="no layer of the kind of layer") as error:
        load_model(tmp_path / "other.gguf")
    assert "other.gguf: metadata key 'gemma4.attention.shared_kv_layers'" in error.value.where


# With an EAGLE-3 head


@pytest.fixture(scope="module", params=gemma4.SHAPES)
def pair(request, tmp_path_factory):
    """Return the subject of a shape and a head of random weights."""
    folder, s = tmp_path_factory.mktemp("pair"), gemma4.SHAPES[request.param]
    sizes = {"width": gemma4.WIDTH, "target_width": gemma4.WIDTH, "n_vocab": gemma4.N_VOCAB}
    head = eagle3.Variant(n_layers=len(s.kinds), layers=(0, 1), **sizes)
    return Subject(
        "eagle3-gemma4", str(write(folder, s)), str(eagle3.write_head(folder / "eagle3", head))
    )


@pytest.mark.parametrize("kv_dtype", ["f16", "q8_0"])
def test_rows_do_not_depend_on_their_company(pair, kv_dtype):
    check_rows(pair, Batching(chunk=96), kv_dtype)
    check_rows(pair, Batching(chunk=7, n_batch=5, threads=2, neighbours=2), kv_dtype)


def test_graphs_are_their_definition(pair):
    assert check_graphs(pair, threads=2) > 700


def test_texts_do_not_depend_on_drafts(pair):
    for k, temperature, n_batch in ((3, 0.0, 512), (2, 1.2, 5)):
        sampling = Sampling(temperature=temperature, seed=5)
        check_texts(pair, Texts(k=k, sampling=sampling, n_batch=n_batch))


# llama.cpp


@needs_llama_cpp
@pytest.mark.parametrize("name", gemma4.SHAPES)
def test_llama_cpp_makes_the_same_of_the_file(name, made_files, tmp_path):
    heard = hear(made_files[name], gemma4.tokens(30).tolist(), 8, tmp_path / "heard.npz")
    with load_model(made_files[name]) as model:
        out = open_context(model, "cpu").process(Batch.of(heard.text, outputs="all"))
    apart = np.abs(out.logits - heard.logits).max(1) / np.abs(heard.logits).max()
    assert np.median(apart) < 2e-3  # ggml's table of GELU has sixteen bits


@pytest.fixture(scope="module")
def made_files(tmp_path_factory):
    """Return the model file of each shape."""
    return {name: write(tmp_path_factory.mktemp("file"), s) for name, s in gemma4.SHAPES.items()}
