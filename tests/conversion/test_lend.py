"""A fine-tune without heads, and those of its base: one file, with the fine-tune's texts."""

import numpy as np
import pytest
from harness.fixtures import model_file
from harness.same_model import assert_same, outputs

import mtpcore
from mtpcore.conversion import lend, quantize
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file, write_model_file


@pytest.fixture
def base():
    return model_file("glm-11")


@pytest.fixture
def fine_tune(base, tmp_path):
    """The base's trunk alone, with other matrices of attention."""
    return _fine_tune(base, tmp_path / "fine-tune.gguf")


def _fine_tune(base, path, **changes):
    quantize(base, path.with_suffix(".trunk"), outtype="f32", mtp="drop")
    rng = np.random.default_rng(3)
    with open_model_file(path.with_suffix(".trunk")) as file:
        tensors = {
            name: t.array() + 0.01 * rng.normal(size=t.shape) * name.endswith("attn_q.weight")
            for name, t in file.tensors.items()
        }
        tensors = {name: values.astype(np.float32) for name, values in tensors.items()}
        for name in changes:
            tensors.pop(changes[name])
        write_model_file(path, file.architecture, file.metadata, tensors, "F32")
    return path


def test_the_file_has_the_fine_tune_and_the_heads(base, fine_tune, tmp_path):
    made = tmp_path / "made.gguf"
    assert lend(base, fine_tune, made) == ["glm_nextn"]
    with (
        open_model_file(made) as file,
        open_model_file(fine_tune) as trunk,
        open_model_file(base) as heads,
    ):
        for name, tensor in file.tensors.items():
            source = trunk if name in trunk.tensors else heads
            assert tensor.raw().tobytes() == source.tensors[name].raw().tobytes()
        assert file.tensors.keys() == trunk.tensors.keys() | heads.tensors.keys()
        for key in ("block_count", "nextn_predict_layers"):
            assert file.metadata[f"glm4moe.{key}"] == heads.metadata[f"glm4moe.{key}"]
    with (
        mtpcore.load_model(made) as whole,
        mtpcore.load_model(fine_tune, sidecars=False) as alone,
    ):
        assert whole.program() == alone.program()
    assert np.array_equal(outputs([made])[0], outputs([fine_tune])[0])
    assert len(outputs([made])[1]) == 3


def test_the_same_as_with_the_heads_beside_it(base, fine_tune, tmp_path):
    lend(base, fine_tune, tmp_path / "made.gguf")
    with mtpcore.load_model(fine_tune, mtp_path=base) as model:
        cross = mtpcore.link(mtpcore.Context(model, 64, kv_dtype="f32", threads=1))
        prompt = np.arange(1, 9)
        logits = cross.llm.process(mtpcore.Batch.of(prompt, outputs="all")).logits.copy()
        drafts = np.array(cross.draft(0, 3, mtpcore.Sampling.greedy()))
    assert_same(outputs([tmp_path / "made.gguf"]), (logits, drafts))


def test_an_output_matrix_of_the_head_stays_the_head_s(base, tmp_path):
    """Beside a trunk that is tied to its embedding table."""
    tied = _fine_tune(base, tmp_path / "tied.gguf", left_out="output.weight")
    lend(base, tied, tmp_path / "made.gguf")
    with (
        mtpcore.load_model(tmp_path / "made.gguf") as whole,
        mtpcore.load_model(tied, sidecars=False) as alone,
    ):
        assert whole.program() == alone.program()
        assert "output.weight" not in whole.tensors
    assert np.array_equal(outputs([tmp_path / "made.gguf"])[0], outputs([tied])[0])


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("own heads", "heads of its own"),
        ("no heads", "no head"),
        ("another architecture", "different architectures"),
        ("itself", "one to read"),
    ],
)
def test_what_does_not_fit_is_refused(which, message, base, fine_tune, tmp_path):
    made = tmp_path / "made.gguf"
    cases = {
        "own heads": (base, base, made),
        "no heads": (fine_tune, fine_tune, made),
        "another architecture": (model_file("mimo-14"), fine_tune, made),
        "itself": (base, fine_tune, fine_tune),
    }
    before = fine_tune.read_bytes()
    with pytest.raises(ModelFileError, match=message):
        lend(*cases[which])
    assert not made.exists()
    assert fine_tune.read_bytes() == before
