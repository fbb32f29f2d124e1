"""Kernels against the definition, on the emulated device and on a GPU where there is one."""

import gguf
import numpy as np
import pytest
from harness.search import searching
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from mtpcore.backends.cuda.layout import pack
from mtpcore.backends.cuda.ops import DeviceMatrix, Step, choose, l2_norm, matmul, rms_norm
from mtpcore.backends.reference.activation import quantise
from mtpcore.backends.reference.formulas import l2_norm as defined_l2_norm
from mtpcore.backends.reference.formulas import rms_norm as defined_rms_norm
from mtpcore.backends.reference.matrix import QuantisedMatrix

KIND = gguf.GGMLQuantizationType
TYPES = [KIND.Q8_0, KIND.Q4_0]
# One device serves all examples of a property.
shared = searching(15, suppress_health_check=[HealthCheck.function_scoped_fixture])


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def execute(device, launches):
    for launch in launches:
        device.launch(device.load(launch.kernel), launch.grid, launch.block, launch.arguments)


def step(device, inputs, weights, out_width, **attrs):
    x = device.upload(inputs)
    out = device.empty((*inputs.shape[:-1], out_width), np.float32)
    kept = {}

    def scratch(name, shape, dtype):
        return kept.setdefault(name, device.empty(shape, dtype))

    return Step((x,), weights, (out,), attrs, scratch), out, kept


def multiply(device, x, values, kind, bias=None):
    raw = gguf.quants.quantize(values, kind).view(np.uint8).reshape(-1)
    packed = pack(raw, int(kind), *values.shape)
    matrix = DeviceMatrix(
        int(kind), *values.shape, device.upload(packed.codes), device.upload(packed.scales)
    )
    weights = (matrix,) if bias is None else (matrix, device.upload(bias))
    made, out, kept = step(device, x, weights, values.shape[0])
    execute(device, matmul(made, len(x)))
    return device.download(out, len(x)), kept


def defined_product(x, values, kind):
    matrix = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
    product = QuantisedMatrix(matrix.astype(np.float64), 32)
    return np.stack([product @ row for row in x])


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
@shared
@given(
    n_rows=st.integers(1, 40),
    n_blocks=st.integers(1, 19),
    n_tokens=st.integers(1, 11),
    seed=st.integers(0, 99),
)
def test_matmul_is_the_defined_product(device, kind, n_rows, n_blocks, n_tokens, seed):
    values, x = floats(seed, n_rows, n_blocks * 32), floats(seed + 1, n_tokens, n_blocks * 32)
    bias = floats(seed + 2, n_rows)
    made, _ = multiply(device, x, values, kind, bias)
    wanted = defined_product(x, values, kind) + bias
    # Eight chains of at most three products each: a few roundings of terms of size 32 or so.
    assert np.allclose(made, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_token_has_the_same_bits_alone_and_in_a_batch(device, kind):
    values, x = floats(1, 33, 32 * 13), floats(2, 11, 32 * 13)
    together, _ = multiply(device, x, values, kind)
    for n in (1, 2, 3, 5, 8, 9):
        for first in (0, 4, 11 - n):
            alone, _ = multiply(device, x[first : first + n], values, kind)
            assert (alone[: 11 - first] == together[first : first + n]).all(), (n, first)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_single_block_is_exact_integers_times_one_product_of_scales(device, kind):
    values, x = floats(5, 16, 32), floats(6, 8, 32)
    made, _ = multiply(device, x, values, kind)
    raw = gguf.quants.quantize(values, kind)
    scale = np.ascontiguousarray(raw[:, :2]).view(np.float16).astype(np.float32)[:, 0]
    codes = np.rint(gguf.quants.dequantize(raw, kind) / scale[:, None])
    parts = [quantise(row, 32) for row in x]
    wanted = [(codes @ q[0]).astype(np.float32) * (scale * d[0]) for q, d in parts]
    assert (made == np.stack(wanted)).all()


def test_activations_are_quantised_as_defined(device):
    x = np.concatenate([floats(3, 4, 96), np.zeros((1, 96), np.float32)])
    x[0, :32] *= 1e-30
    _, kept = multiply(device, x, floats(4, 8, 96), KIND.Q8_0)
    codes, scales = (device.download(kept[name], 5) for name in ("codes", "scales"))
    for row, got, got_scales in zip(x, codes, scales, strict=True):
        wanted, wanted_scales = quantise(row, 32)
        assert (got == wanted.reshape(-1)).all()
        assert (got_scales == wanted_scales).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_activation_reaches_every_output_of_its_token_only(device, bad):
    x = floats(7, 3, 64)
    clean, _ = multiply(device, x, floats(8, 20, 64), KIND.Q8_0)
    x[1, 40] = bad
    made, _ = multiply(device, x, floats(8, 20, 64), KIND.Q8_0)
    assert np.isnan(made[1]).all()
    assert (made[[0, 2]] == clean[[0, 2]]).all()


@pytest.mark.parametrize("shape", [(3, 64), (2, 300), (1, 1), (2, 3, 100)])
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm_is_as_defined(device, shape, weighted):
    x, w = floats(9, *shape), floats(10, shape[-1])
    weights = (device.upload(w),) if weighted else ()
    made, out, _ = step(device, x, weights, shape[-1], eps=1e-5)
    execute(device, rms_norm(made, shape[0]))
    got = device.download(out, shape[0])
    wanted = defined_rms_norm(x.astype(np.float64), w if weighted else None, eps=1e-5)
    assert np.allclose(got, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(3, 64), (2, 3, 100)])
def test_l2_norm_is_as_defined(device, shape):
    x = floats(11, *shape)
    made, out, _ = step(device, x, (), shape[-1], eps=1e-6)
    execute(device, l2_norm(made, shape[0]))
    wanted = defined_l2_norm(x.astype(np.float64), eps=1e-6)
    assert np.allclose(device.download(out, shape[0]), wanted, rtol=1e-6, atol=1e-7)


@shared
@given(
    row=st.lists(
        st.sampled_from([0.0, -0.0, 1.0, 2.0, np.nan, np.inf, -np.inf]), min_size=1, max_size=700
    )
)
def test_argmax_takes_the_lowest_of_the_best_and_never_a_nan(device, row):
    logits = np.array([row, [np.nan] * len(row), [-np.inf] * len(row)], np.float32)
    ids = device.upload(np.full(3, -1, np.int32))
    execute(device, [choose(device.upload(logits), ids, 3)])
    comparable = np.where(np.isnan(logits[0]), -np.inf, logits[0])
    usable = np.flatnonzero(~np.isnan(logits[0]))
    best = comparable[usable].max() if len(usable) else None
    wanted = next((int(i) for i in usable if comparable[i] == best), 0)
    assert device.download(ids, 3).tolist() == [wanted, 0, 0]
