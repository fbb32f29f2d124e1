"""Tensor types on the CPU: native ones against gguf's definition, others by conversion at load."""

import logging

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from harness.generated import (
    FAMILIES,
    N_VOCAB,
    NATIVE,
    QUANTISED,
    make_metadata,
    make_tensors,
    types_of,
    write_generated,
)

import mtpcore
from mtpcore._ext._matmul import activation_block, is_native, pack
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.backends.reference.activation import BLOCK_OF_TYPE
from mtpcore.backends.reference.arithmetic.formats import NATIVE_TYPES
from mtpcore.gguf import write_model_file
from mtpcore.gguf.types import block_type, dequantize

CONVERTED = ("TQ1_0", "TQ2_0", "Q1_0", "Q2_0", "NVFP4")
TEXTS = np.random.default_rng(3).integers(0, N_VOCAB, (9, 5))


def run(path, backend):
    """Return [logits, hidden], each float32[texts, tokens, width]."""
    with mtpcore.load_model(path) as model:
        context = mtpcore.Context(
            model, 64, n_seq_max=len(TEXTS), kv_dtype="f32", threads=2, backend=backend,
            taps=["hidden"],
        )  # fmt: skip
        seq = np.repeat(np.arange(len(TEXTS)), TEXTS.shape[1])
        batch = mtpcore.Batch(TEXTS.ravel(), seq=seq, pos=0, outputs="all")
        out = context.process(batch)
        return [rows.reshape(*TEXTS.shape, -1) for rows in (out.logits, out.tap("hidden"))]


def largest_errors(made, wanted):
    """Return the largest error of each text, over the largest value."""
    assert all(np.abs(rows).max() > 0.5 for rows in wanted)
    return np.max(
        [np.abs(m - w).max((1, 2)) / np.abs(w).max() for m, w in zip(made, wanted, strict=True)],
        axis=0,
    )


def assert_bits_as_written_down(path, made):
    wanted = run(path, ReferenceBackend(quantise_activations=True))
    assert all(np.array_equal(m, w) for m, w in zip(made, wanted, strict=True))


def relative_rms(made, wanted):
    return np.sqrt(np.mean((made - wanted) ** 2) / np.mean(wanted**2))


def test_native_types():
    assert {t.name for t in GGMLQuantizationType if is_native(t)} == set(NATIVE)


def test_the_arithmetic_is_written_down_for_every_native_type():
    """The reference backend has lists of its own, of types and of how they want activations."""
    native = [int(kind) for kind in GGMLQuantizationType if is_native(kind)]
    assert sorted(NATIVE_TYPES) == sorted(native)
    for kind in native:
        n_cols, row_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        matrix = pack(bytes(row_bytes), kind, 1, n_cols)
        assert activation_block(matrix.activation) == BLOCK_OF_TYPE.get(kind, 1)


@pytest.mark.parametrize("kind", NATIVE)
@pytest.mark.parametrize("family", ["llama", "glm4moe"])
def test_native_type(family, kind, tmp_path):
    """The bits of the arithmetic as it is written down, and the values of the formulas.

    The latter multiply what the ``gguf`` package dequantises, in float64.
    """
    path = write_generated(tmp_path / "model.gguf", family, kind)
    made = run(path, "cpu")
    assert_bits_as_written_down(path, made)
    errors = largest_errors(made, run(path, ReferenceBackend("f64", quantise_activations=True)))
    if kind not in QUANTISED:
        assert errors.max() < 1e-5
        return
    # Here and there an activation lies so near the middle of two codes that the last bit of a sum
    # decides between them; the text from there on is another one.
    assert np.median(errors) < 1e-5
    assert errors.max() < 0.05
    plain = run(path, ReferenceBackend())
    # Random experts are near each other: an activation rounded may choose another one.
    assert 1e-4 < relative_rms(made[0], plain[0]) < 0.1


@pytest.mark.parametrize("kind", CONVERTED)
def test_type_that_is_converted(kind, tmp_path, caplog):
    path = write_generated(tmp_path / "model.gguf", FAMILIES[CONVERTED.index(kind) % 4], kind)
    with caplog.at_level(logging.INFO, logger="mtpcore"):
        made = run(path, "cpu")
    lines = [r.getMessage() for r in caplog.records if "converted" in r.getMessage()]
    assert lines == [f"{path}: {kind} tensors are converted to F16 at load"]
    assert_bits_as_written_down(path, made)
    errors = largest_errors(made, run(path, ReferenceBackend()))
    assert np.median(errors) < 1e-2  # float16 keeps 11 bits of a weight
    assert relative_rms(made[0], run(path, ReferenceBackend())[0]) < 1e-2


@pytest.mark.parametrize("family", ["llama", "glm4moe"])
def test_scales_beside_nvfp4_multiply_its_values(family, tmp_path):
    """As bits, since the scales are powers of two; of experts each has its own."""
    tensors, scaled, rng = make_tensors(family, "NVFP4"), {}, np.random.default_rng(4)
    types = types_of(tensors, "NVFP4")
    for name in types.keys() - {"token_embd.weight"}:
        n = tensors[name].shape[0] if tensors[name].ndim == 3 else 1
        scaled[name.replace(".weight", ".scale")] = np.exp2(rng.integers(-1, 2, n)).astype("f4")
    values = {}
    for name in types:
        scale = scaled.get(name.replace(".weight", ".scale"), np.ones(1, np.float32))
        made = dequantize(tensors[name], block_type("NVFP4"))
        values[name] = made * (scale[:, None, None] if made.ndim == 3 else scale)
    given = make_metadata(family)
    paths = [tmp_path / name for name in ("nvfp4.gguf", "f16.gguf", "bare.gguf")]
    write_model_file(paths[0], family, given, tensors | scaled, types)
    write_model_file(paths[1], family, given, tensors | values, dict.fromkeys(types, "F16"))
    write_model_file(paths[2], family, given, tensors, types)
    made, wanted, bare = (run(path, "cpu") for path in paths)
    assert all(np.array_equal(m, w) for m, w in zip(made, wanted, strict=True))
    assert not np.array_equal(made[0], bare[0])
