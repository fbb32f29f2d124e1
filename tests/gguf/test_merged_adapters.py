"""Adapters merged into a model, as it is loaded and as it is quantised."""

import numpy as np
import pytest
from harness.adapters import matrices_of, write_adapter
from harness.generated import write_generated

from mtpcore import Batch, Context, ModelFileError, load_adapter, load_model
from mtpcore.cli import main
from mtpcore.conversion import quantize
from mtpcore.gguf import open_model_file, write_model_file
from mtpcore.gguf.writer import encode


def made(path, adapters=(), tokens=range(3, 13)):
    with load_model(path, adapters=adapters) as model:
        context = Context(model, 64, kv_dtype="f32")
        return context.process(Batch.of([*tokens], outputs="all")).logits


@pytest.fixture(scope="module")
def changes(tmp_path_factory):
    """A model, an adapter of its matrices and one of its stacks, and what they add."""
    folder = tmp_path_factory.mktemp("merged")
    write_generated(folder / "m.gguf", "glm4moe", "F32")
    with load_model(folder / "m.gguf") as model:
        shapes = matrices_of(model)
        stacks = {n: t.shape for n, t in model.tensors.items() if len(t.shape) == 3}
        assert stacks
        one = write_adapter(folder / "one.gguf", "glm4moe", shapes, seed=1)
        two = write_adapter(folder / "two.gguf", "glm4moe", {**shapes, **stacks}, seed=2)
    return folder, one, two


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_K"])
def test_what_is_stored_is_the_sum_in_the_matrix_s_type(changes, tmp_path, kind):
    folder, one, two = changes
    source = write_generated(tmp_path / "m.gguf", "glm4moe", kind)
    given = [(load_adapter(folder / "one.gguf"), 0.5), (load_adapter(folder / "two.gguf"), -1.0)]
    with load_model(source) as before, load_model(source, adapters=given) as after:
        for name, tensor in before.tensors.items():
            merged = after.tensors[name]
            if name not in two:
                assert merged.raw().tobytes() == tensor.raw().tobytes()
                continue
            change = np.reshape(0.5 * one.get(name, 0) - two[name], tensor.shape)
            wanted = tensor.array().astype(np.float64) + change
            assert (merged.type, merged.shape) == (tensor.type, tensor.shape)
            stored = encode(name, wanted.astype(np.float32), tensor.type)[0]
            same = np.mean(stored.view(np.uint8).ravel() == merged.raw().ravel())
            is_float32 = tensor.type_name == "F32"  # where sums are rounded another way
            assert same > 0.97 or is_float32
            if is_float32:
                np.testing.assert_allclose(merged.array(), wanted, rtol=0, atol=1e-6)


def test_quantize_writes_what_is_merged(changes, tmp_path, capsys):
    folder, _, _ = changes
    source, adapter = folder / "m.gguf", folder / "one.gguf"
    options = ["--outtype", "f32", "--lora", f"{adapter}:0.5"]
    assert main(["quantize", str(source), str(tmp_path / "merged.gguf"), *options]) == 0
    wanted = made(source, [(load_adapter(adapter), 0.5)])
    assert np.array_equal(made(tmp_path / "merged.gguf"), wanted)
    assert not np.array_equal(made(source), wanted)
    quantize(source, tmp_path / "q.gguf", outtype="q4_k_m", adapters=[(adapter, 0.5)])
    quantize(tmp_path / "merged.gguf", tmp_path / "r.gguf", outtype="q4_k_m")
    with open_model_file(tmp_path / "q.gguf") as q, open_model_file(tmp_path / "r.gguf") as r:
        for name, tensor in q.tensors.items():
            assert tensor.raw().tobytes() == r.tensors[name].raw().tobytes()
    assert "once more" not in capsys.readouterr().err


def test_run_with_merged_adapters(changes, capsys):
    folder, _, _ = changes
    words = ["run", str(folder / "m.gguf"), "--prompt-tokens", "3,4,5", "-n", "6", "--temp", "0"]
    words += ["--lora", str(folder / "one.gguf"), "--json", "--draft", "0"]
    assert main(words) == 0
    apart = capsys.readouterr().out
    assert main([*words, "--lora-merge"]) == 0
    assert capsys.readouterr().out.split('"stats"')[0] == apart.split('"stats"')[0]


def test_a_table_of_embeddings(tmp_path):
    """Both halves stand the other way round in the file, as a row is looked up."""
    source = write_generated(tmp_path / "m.gguf", "llama", "F32")
    rng = np.random.default_rng(0)
    with load_model(source) as model:
        n_vocab, width = model.tensors["token_embd.weight"].shape
    a = rng.normal(0, 0.1, (n_vocab, 3)).astype(np.float32)
    b = rng.normal(0, 0.1, (width, 3)).astype(np.float32)
    keys = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 6.0}
    tensors = {"token_embd.weight.lora_a": a, "token_embd.weight.lora_b": b}
    write_model_file(tmp_path / "a.gguf", "llama", keys, tensors)
    adapter = load_adapter(tmp_path / "a.gguf")
    with load_model(source) as before, load_model(source, adapters=[(adapter, 1.0)]) as after:
        change = (
            after.tensors["token_embd.weight"].array() - before.tensors["token_embd.weight"].array()
        )
        np.testing.assert_allclose(change, 2 * a @ b.T, rtol=0, atol=1e-6)


def test_what_cannot_be_merged_is_refused(changes, tmp_path):
    folder, _, _ = changes
    write_adapter(tmp_path / "a.gguf", "llama", {"x.weight": (3, 4)})
    with pytest.raises(ModelFileError, match="another architecture"):
        load_model(folder / "m.gguf", adapters=[(load_adapter(tmp_path / "a.gguf"), 1.0)])
    write_adapter(tmp_path / "a.gguf", "glm4moe", {"x.weight": (3, 4)})
    out = tmp_path / "out.gguf"
    with pytest.raises(ModelFileError, match="does not have"):
        quantize(folder / "m.gguf", out, outtype="q8_0", adapters=[(tmp_path / "a.gguf", 1.0)])
    assert not out.exists()
