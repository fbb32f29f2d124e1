"""DeepSeek's variants, on random models, against a restatement of the formulas in float64."""

import mtpcore_deepseek_mtp
import numpy as np
import pytest
from harness.deepseek import (
    N_TRUNK,
    VARIANTS,
    V,
    config_of,
    make_metadata,
    make_tensors,
    make_weights,
    published,
    witness,
)
from harness.fixtures import model_file
from harness.published import write_checkpoint
from harness.restated import BACKENDS, check

from mtpcore import Batch, Context
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.conversion import convert
from mtpcore.discovery.loading import load_model
from mtpcore.discovery.registry import Registry
from mtpcore.errors import CapacityError, ModelFileError
from mtpcore.gguf import open_model_file, write_model_file
from mtpcore.testing import Runner

TOKENS = np.random.default_rng(7).integers(0, V, 70)  # more than a page
PLUGIN = Registry.of(mtpcore_deepseek_mtp)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", VARIANTS)
def test_trunk_and_head(name, backend, tmp_path):
    c, path = VARIANTS[name], tmp_path / "deepseek.gguf"
    weights = make_weights(c, seed=list(VARIANTS).index(name))
    write_model_file(path, "deepseek2", make_metadata(c), make_tensors(c, weights))
    kind, kv_dtype, _ = BACKENDS[backend]
    wanted_trunk, wanted_head = witness(c, weights, TOKENS)
    with load_model(path, plugins=PLUGIN) as model:

        def open_runner(graph_type, taps=(), drafter=None):
            program = model.program(graph_type, taps=taps, drafter=drafter)
            return Runner(kind, program, model, kv_dtype=kv_dtype, threads=2)

        trunk = open_runner("llm", ["hidden", "residual"]).feed(TOKENS)
        head = open_runner("draft", drafter="deepseek_mtp_residual_recycled").feed(
            TOKENS[1:], place=1, hidden=trunk["hidden"][:-1]
        )
    check(trunk, wanted_trunk, backend)
    check(head, wanted_head, backend)


@pytest.mark.parametrize(
    "name", ["V2", "V2-Lite", "V3, own tables", "two mscales", "GLM-4.7-Flash"]
)
def test_from_the_published_checkpoint(name, tmp_path):
    """The file that ``convert`` makes has the tensors of one written as files are, and computes so.

    V2 has no head.
    """
    c, n_heads = VARIANTS[name], int(not name.startswith("V2"))
    weights = make_weights(c, seed=list(VARIANTS).index(name))
    tensors = published(weights, N_TRUNK + n_heads)
    write_checkpoint(tmp_path / "hf", config_of(c), tensors, n_files=2)
    assert convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="f32", plugins=PLUGIN) == {}
    wanted_tensors = {
        name: values
        for name, values in make_tensors(c, weights).items()
        if n_heads or not name.startswith(f"blk.{N_TRUNK}.")
    }
    with open_model_file(tmp_path / "model.gguf") as file:
        assert file.tensors.keys() == wanted_tensors.keys()
        for tensor, values in wanted_tensors.items():
            np.testing.assert_array_equal(file.tensors[tensor].array(), values, tensor)
    wanted_trunk, wanted_head = witness(c, weights, TOKENS)
    (kind, kv_dtype, _), taps = BACKENDS["cpu"], ["hidden", "residual"]
    with load_model(tmp_path / "model.gguf", plugins=PLUGIN) as model:
        trunk = Runner(kind, model.program("llm", taps=taps), model, kv_dtype=kv_dtype)
        made = trunk.feed(TOKENS)
        check(made, wanted_trunk, "cpu")
        assert len(model.drafters) == 4 * n_heads
        if n_heads:
            program = model.program("draft", drafter="deepseek_mtp_residual_recycled")
            head = Runner(kind, program, model, kv_dtype=kv_dtype)
            check(head.feed(TOKENS[1:], place=1, hidden=made["hidden"][:-1]), wanted_head, "cpu")


def test_both_forms_of_a_trained_model_agree(tmp_path):
    """Keys and values made for every head from one matrix, as old files hold them."""
    with load_model(model_file("ds-12"), plugins=PLUGIN) as split:
        tensors = {name: tensor.array() for name, tensor in split.tensors.items()}
        metadata = dict(split.metadata)
        for name in [name for name in tensors if name.endswith("attn_k_b.weight")]:
            keys = tensors.pop(name).swapaxes(1, 2)
            values = tensors.pop(name.replace("k_b", "v_b"))
            both = np.concatenate([keys, values], axis=1).reshape(-1, keys.shape[2])
            tensors[name.replace("k_b", "kv_b")] = np.ascontiguousarray(both)
        for name in ("key", "value"):
            metadata[f"deepseek2.attention.{name}_length"] = metadata.pop(
                f"deepseek2.attention.{name}_length_mla"
            )
        metadata["deepseek2.attention.head_count_kv"] = split.hparams.n_heads
        write_model_file(tmp_path / "old.gguf", "deepseek2", metadata, tensors)
        tokens = np.random.default_rng(1).integers(0, 2048, 40)
        with load_model(tmp_path / "old.gguf", plugins=PLUGIN) as naive:
            found = []
            for model in (split, naive):
                program = model.program("llm", taps=["hidden"])
                runner = Runner(ReferenceBackend("f64"), program, model, kv_dtype="f64")
                found.append((runner.feed(tokens), runner.memory.store.n_bytes))
    (one, latent_bytes), (other, naive_bytes) = found
    for output in one:
        assert np.abs(one[output] - other[output]).max() < 1e-10
    assert naive_bytes == latent_bytes * 8 * (48 + 32) // 80


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.kv_lora_rank", 0),
        ("attention.key_length_mla", -1),
    ],
)
def test_settings_that_are_refused(key, value, tmp_path):
    c = VARIANTS["V3"]
    metadata = make_metadata(c) | {f"deepseek2.{key}": value}
    write_model_file(tmp_path / "m.gguf", "deepseek2", metadata, make_tensors(c, make_weights(c)))
    with pytest.raises(ModelFileError, match=key):
        load_model(tmp_path / "m.gguf", plugins=PLUGIN)


def test_contexts_are_as_long_as_what_an_indexer_chooses(tmp_path):
    c = VARIANTS["V3"]
    weights, metadata = make_tensors(c, make_weights(c)), make_metadata(c)
    write_model_file(tmp_path / "v3.gguf", "deepseek2", metadata, weights)
    indexed = {key.replace("deepseek2.", "deepseek32."): value for key, value in metadata.items()}
    indexed |= {"deepseek32.attention.indexer.head_count": 2}
    indexed |= {"deepseek32.attention.indexer.top_k": len(TOKENS)}
    weights |= {"blk.0.indexer.proj.weight": np.ones((2, 24), np.float32)}
    write_model_file(tmp_path / "v32.gguf", "deepseek32", indexed, weights)
    found = []
    for name in ("v3", "v32"):
        with load_model(tmp_path / f"{name}.gguf", plugins=PLUGIN) as model:
            context = Context(model, len(TOKENS))
            found.append(context.process(Batch.of(TOKENS, outputs="all")).logits)
            if name == "v32":
                with pytest.raises(CapacityError, match=f"{len(TOKENS)}.*chooses which tokens"):
                    Context(model, len(TOKENS) + 1).process(Batch.of(TOKENS))
    np.testing.assert_array_equal(*found)
