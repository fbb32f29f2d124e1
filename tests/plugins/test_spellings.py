"""What model files may spell in several ways, in every family: each way is the same model."""

from hashlib import sha256

import numpy as np
import pytest
from harness.every_trunk import FAMILIES, write_trunk
from harness.generated import write_generated
from harness.generated_heads import DRAFTERS, write_drafter
from harness.same_model import assert_same, outputs

from mtpcore import ModelFileError, load_model
from mtpcore.gguf import open_model_file, write_model_file
from mtpcore.gguf.spellings import BY_LAYER, ZERO_IS_NONE
from mtpcore.gguf.types import F32


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Return the files of a family's model, or of a model and its drafter, as we write them."""
    made = {}

    def make(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            if name in DRAFTERS:
                trunk = folder / "trunk.gguf"
                write_generated(trunk, "llama", "F32")
                made[name] = [trunk, write_drafter(folder / f"{name}.gguf", name, "F32")]
            else:
                trunk = write_trunk(folder, name)
                made[name] = [trunk, *sorted(folder.glob("mmproj-*.gguf"))]
        return made[name]

    return make


def as_it_is(value, prefix=""):
    return value


def rewrite(paths, folder, *, metadata=as_it_is, tensors=as_it_is):
    """Write files again, their metadata and tensors in another spelling.

    ``metadata`` gets all values, and with what the architecture's keys begin; that of a companion
    is left as it is. ``tensors`` gets arrays by name.
    """
    for path in paths:
        with open_model_file(path) as file:
            arrays = {
                name: t.array() if t.type == F32 else t.raw() for name, t in file.tensors.items()
            }
            types = {name: t.type for name, t in file.tensors.items()}
            values, architecture = file.metadata, file.architecture
            if architecture != "clip":
                values = metadata(values, f"{architecture}.")
            write_model_file(folder / path.name, architecture, values, tensors(arrays), types)
    return [folder / path.name for path in paths]


@pytest.mark.parametrize("name", [*FAMILIES, *DRAFTERS])
def test_axes_of_1(name, original, tmp_path):
    """Other programs write none at all, or as many as they like."""
    paths = original(name)
    for n in (0, 4):
        folder = tmp_path / str(n)
        folder.mkdir()

        def pad(arrays, n=n):
            return {k: v.reshape(*(1,) * (n - v.ndim), *v.shape) for k, v in arrays.items()}

        spelled = rewrite(paths, folder, tensors=pad)
        assert_same(outputs(spelled), outputs(paths))


def zeros_for_none(values, prefix):
    """Write 0 for all that is unset, as llama.cpp's saver does."""
    return {f"{prefix}{name}": 0.0 if name in FLOATS else 0 for name in ZERO_IS_NONE} | values


def lists_of_blocks(values, prefix):
    """Write an entry for each block, as Ollama's converter does of some keys."""
    n_blocks = values[f"{prefix}block_count"]
    counts = {key: values[key] for name in BY_LAYER if (key := f"{prefix}{name}") in values}
    return values | {
        key: [value] * n_blocks for key, value in counts.items() if isinstance(value, int)
    }


def whole_floats(values, prefix):
    """Write numbers as JavaScript has them."""
    numbers = {key: value for key, value in values.items() if key.startswith(prefix)}
    return values | {key: float(value) for key, value in numbers.items() if type(value) is int}


def numbers_for_flags(values, prefix):
    flags = {key: np.asarray(value) for key, value in values.items() if key.startswith(prefix)}
    return values | {k: v.astype(np.uint32)[()] for k, v in flags.items() if v.dtype == bool}


FLOATS = {
    *("attention.scale", "attention.value_scale", "embedding_scale", "expert_weights_scale"),
    *("logit_scale", "rope.scale_linear", "rope.scaling.factor"),
}
SPELLINGS = [zeros_for_none, lists_of_blocks, whole_floats, numbers_for_flags]


@pytest.mark.parametrize("name", [*FAMILIES, *DRAFTERS])
def test_metadata(name, original, tmp_path):
    """All spellings of all keys at once, where they do not exclude each other, and one by one."""
    paths, wanted = original(name), outputs(original(name))
    for spelling in SPELLINGS:
        folder = tmp_path / spelling.__name__
        folder.mkdir()
        spelled = rewrite(paths, folder, metadata=spelling)
        assert_same(outputs(spelled), wanted)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "attention.head_count",
            lambda n, n_blocks: [*[n] * (n_blocks - 1), 2 * n],
            "layers.* differ",
        ),
        ("attention.head_count", lambda n, n_blocks: [n] * (n_blocks + 1), "not one entry a layer"),
        ("attention.head_count", lambda n, n_blocks: n + 0.5, "wrong value"),
        ("attention.head_count", lambda n, n_blocks: 0, "wrong value"),
        ("embedding_length", lambda n, n_blocks: [n] * n_blocks, "wrong value"),
        ("embedding_length", lambda n, n_blocks: True, "wrong value"),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_no_spelling_is_refused(family, name, value, said, original, tmp_path):
    def change(values, prefix):
        n, n_blocks = values[f"{prefix}{name}"], values[f"{prefix}block_count"]
        return values | {f"{prefix}{name}": value(n, n_blocks)}

    paths = rewrite(original(family), tmp_path, metadata=change)
    with pytest.raises(ModelFileError, match=f"{name}.*{said}"):
        load_model(paths[0])


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "qwen3-tts"])
def test_blobs_of_ollama(family, original, tmp_path):
    """Files are named by their digest; keys and tensors are sorted, head counts by layer."""

    def change(values, prefix):
        return dict(sorted(lists_of_blocks(values, prefix).items()))

    (path,) = rewrite(
        original(family),
        tmp_path,
        metadata=change,
        tensors=lambda arrays: dict(sorted(arrays.items())),
    )
    blob = path.rename(tmp_path / f"sha256-{sha256(path.read_bytes()).hexdigest()}")
    assert_same(outputs([blob]), outputs(original(family)))


def test_latent_attention_as_ik_llama_cpp_writes_it(original, tmp_path):
    """Matrices of heads lie in one, beside the one that both come from; no head is shared."""

    def undo_absorption(values, prefix):
        said = {
            f"{prefix}attention.{name}_length": values.pop(f"{prefix}attention.{name}_length_mla")
            for name in ("key", "value")
        }
        n_heads = values[f"{prefix}attention.head_count"]
        return values | said | {f"{prefix}attention.head_count_kv": n_heads}

    def join(arrays):
        for key in [key for key in arrays if key.endswith("attn_k_b.weight")]:
            keys, values = arrays[key], arrays[key.replace("k_b", "v_b")]
            both = np.concatenate([keys.swapaxes(1, 2), values], axis=1)
            arrays[key.replace("k_b", "kv_b")] = both.reshape(-1, both.shape[2])
            for name, stack in ((key, keys), (key.replace("k_b", "v_b"), values)):
                arrays[name] = stack.reshape(-1, stack.shape[2])
        return arrays

    paths = original("deepseek2")
    spelled = rewrite(paths, tmp_path, metadata=undo_absorption, tensors=join)
    assert_same(outputs(spelled), outputs(paths))


MATRICES = (".attn_output.weight", ".attn_o.weight")
PASSED_OVER = ("t5",)
"""Where llama.cpp's graph does not multiply by a factor of this matrix."""


@pytest.mark.parametrize("name", [*FAMILIES, *DRAFTERS])
def test_a_factor_beside_a_matrix_multiplies_it_or_nothing(name, original, tmp_path):
    def of(change):
        def changed(arrays):
            stems = [key.removesuffix(".weight") for key in arrays if key.endswith(MATRICES)]
            return arrays | (change(stems[0], arrays[f"{stems[0]}.weight"]) if stems else {})

        return outputs(rewrite(original(name), tmp_path, tensors=changed))

    factor = of(lambda stem, matrix: {f"{stem}.scale": np.full(1, 2, np.float32)})
    if name in PASSED_OVER:
        assert_same(factor, outputs(original(name)))
    else:
        doubled = of(lambda stem, matrix: {f"{stem}.weight": 2 * matrix})
        np.testing.assert_allclose(factor[0], doubled[0], rtol=1e-4, atol=1e-5)
