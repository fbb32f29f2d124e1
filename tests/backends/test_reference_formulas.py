"""Formulas of the reference against other ways to write them."""

import math

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mtpcore.backends.reference import formulas
from mtpcore.backends.reference.activation import quantise, rounded
from mtpcore.backends.reference.matrix import QuantisedMatrix

ROUTE = {"normalise": False, "scale": 1.0, "n_groups": 1, "n_groups_used": 1, "n_best_of_group": 2}


@pytest.fixture
def rng():
    """Numbers that are the same whichever tests ran before."""
    return np.random.default_rng(5)


def test_norms(rng):
    x, w, b = rng.normal(size=(3, 7))
    eps = 1e-3
    rms = math.sqrt(sum(v * v for v in x) / 7 + eps)
    assert formulas.rms_norm(x, w, eps=eps) == pytest.approx([w[i] * x[i] / rms for i in range(7)])
    length = math.sqrt(sum(v * v for v in x) + eps)
    assert formulas.l2_norm(x, eps=eps) == pytest.approx(x / length)
    mean = sum(x) / 7
    deviation = math.sqrt(sum((v - mean) ** 2 for v in x) / 7 + eps)
    assert formulas.layer_norm(x, w, b, eps=eps) == pytest.approx(
        [w[i] * (x[i] - mean) / deviation + b[i] for i in range(7)]
    )


def test_norms_take_each_head_alone(rng):
    x, w = rng.normal(size=(4, 6)), rng.normal(size=6)
    alone = [formulas.rms_norm(head, w, eps=1e-6) for head in x]
    assert np.array_equal(formulas.rms_norm(x, w, eps=1e-6), alone)
    lengths = [np.linalg.norm(head) for head in formulas.l2_norm(x, eps=0.0)]
    assert lengths == pytest.approx([1, 1, 1, 1])


@pytest.mark.parametrize(
    ("kind", "at_one", "at_minus_two"),
    [
        ("silu", 0.7310585786, -0.2384058440),
        ("gelu", 0.8413447461, -0.0455002639),
        ("gelu_tanh", 0.8411919906, -0.0454023059),
        ("relu", 1.0, 0.0),
        ("sigmoid", 0.7310585786, 0.1192029220),
        ("tanh", 0.7615941560, -0.9640275801),
        ("softplus", 1.3132616875, 0.1269280110),
        ("gelu_sigmoid", 0.8457957659, -0.0643413769),
    ],
)
def test_activations(kind, at_one, at_minus_two):
    """Values from tables of the normal distribution and of tanh."""
    x = np.array([1.0, -2.0])
    assert formulas.activation(x, kind=kind) == pytest.approx([at_one, at_minus_two], abs=1e-9)
    up, plain = np.array([3.0, 5.0]), {"limit": 0.0, "offset": 0}
    found = formulas.gated(x, up, kind=kind, **plain)
    assert found == pytest.approx([3 * at_one, 5 * at_minus_two], abs=1e-8)
    cut = {"limit": 1.0, "offset": 1}
    found = formulas.gated(np.array([4.0, -2.0]), np.array([3.0, -5.0]), kind=kind, **cut)
    assert found == pytest.approx([2 * at_one, 0], abs=1e-8)


def test_xielu_bends_at_zero():
    """A parabola above, below what an exponential approaches; near 0 both have the slope beta."""
    numbers = {"alpha_p": 2.0, "alpha_n": 3.0, "beta": 0.5, "eps": -1e-6}
    found = formulas.xielu(np.array([2.0, -1.0, -50.0, 1e-9, -1e-5]), **numbers)
    below = 3 * (math.exp(-1) - 1 + 1) - 0.5
    assert found == pytest.approx([9, below, 3 * 49 - 25, 5e-10, -5e-6], rel=1e-4)


def test_about_as_many_values_are_left_as_a_normal_distribution_has(rng):
    x = 3 * rng.normal(size=(2, 20000)) + 7
    left = formulas.gaussian_topk(x, n_deviations=1.6448536)
    assert (left > 0).mean(axis=1) == pytest.approx([0.05, 0.05], abs=0.005)
    for row, found in zip(x, left, strict=True):
        mean = sum(row) / len(row)
        cutoff = mean + 1.6448536 * math.sqrt(sum((v - mean) ** 2 for v in row) / len(row))
        assert found == pytest.approx([max(v - cutoff, 0) for v in row])


def test_factors_of_positions_are_one_before_the_first_part():
    """Llama 4 counts positions from 1: the 8192nd is the first with another factor."""
    factors = [
        formulas.scale_by_position(np.ones(1), np.array([p]), beta=0.1, n=8192, offset=1)[0]
        for p in (0, 8190, 8191, 16382, 16383)
    ]
    at_once, twice = 1 + 0.1 * np.log(2), 1 + 0.1 * np.log(3)
    assert factors == [1, 1, pytest.approx(at_once), pytest.approx(at_once), pytest.approx(twice)]


def test_a_weight_for_each_value(rng):
    x, w = rng.normal(size=(2, 3)), np.array([2.0, -1.0, 0.5])
    assert formulas.scale_by(x, w)[1] == pytest.approx([2 * x[1, 0], -x[1, 1], 0.5 * x[1, 2]])
    assert formulas.shift_by(x, w)[1] == pytest.approx([x[1, 0] + 2, x[1, 1] - 1, x[1, 2] + 0.5])


@pytest.mark.parametrize("style", ["halves", "pairs"])
def test_rope_is_a_product_of_complex_numbers(rng, style):
    x = rng.normal(size=(3, 10))  # the last two dimensions are not turned
    position = np.array([11, 5, -2], np.int32)
    frequencies, axes = (1.0, 0.3, 0.09, 0.027), (0, 2, 1, 1)
    factors = np.array([1.0, 2.0, 4.0, 8.0])
    made = formulas.rope(
        x, position, factors, frequencies=frequencies, axes=axes, style=style, magnitude=1.5
    )
    for i in range(4):
        a, b = (i, i + 4) if style == "halves" else (2 * i, 2 * i + 1)
        angle = position[axes[i]] * frequencies[i] / factors[i]
        turned = (x[:, a] + 1j * x[:, b]) * 1.5 * np.exp(1j * angle)
        assert made[:, a] == pytest.approx(turned.real)
        assert made[:, b] == pytest.approx(turned.imag)
    assert np.array_equal(made[:, 8:], x[:, 8:])


# Routing


def test_route_by_sigmoid_with_correction():
    gates = np.array([0.1, 0.8, 0.5, 0.6])
    w = np.log(gates / (1 - gates))[:, None]
    correction = np.array([0.9, 0.0, 0.0, -0.5])
    ids, shares = formulas.route(
        np.ones(1), w, correction, n_used=2, gate="sigmoid", **(ROUTE | {"scale": 2.5})
    )
    assert ids.tolist() == [0, 1]
    assert shares == pytest.approx([0.25, 2.0])
    _, shares = formulas.route(
        np.ones(1), w, correction, n_used=2, gate="sigmoid", **(ROUTE | {"normalise": True})
    )
    assert shares == pytest.approx([1 / 9, 8 / 9])


def test_route_by_softmax():
    w = np.log(np.array([1.0, 5.0, 2.0]))[:, None]
    ids, shares = formulas.route(np.ones(1), w, n_used=2, gate="softmax", **ROUTE)
    assert ids.tolist() == [1, 2]
    assert shares == pytest.approx([5 / 8, 2 / 8])


def test_route_ties_go_to_the_lowest_id():
    w = np.array([1.0, 3.0, 2.0, 3.0, 2.0, 2.0])[:, None]
    ids, _ = formulas.route(np.ones(1), w, n_used=5, gate="sigmoid", **ROUTE)
    assert ids.tolist() == [1, 3, 2, 4, 5]


def test_route_by_groups():
    """The best group is the one whose two best experts sum highest, or that of the best expert."""
    w = np.array([2.0, -9, -9, 1.0, 1.1, -9, 0.5, 0.5, 0.5])[:, None]
    groups = ROUTE | {"n_used": 2, "gate": "sigmoid", "n_groups": 3}
    assert formulas.route(np.ones(1), w, **groups)[0].tolist() == [4, 3]
    groups["n_best_of_group"] = 1
    assert formulas.route(np.ones(1), w, **groups)[0].tolist() == [0, 1]


@given(
    hnp.arrays(np.float32, 8, elements=st.floats(width=32, allow_nan=True, allow_infinity=True)),
    st.sampled_from(["sigmoid", "softmax"]),
    st.sampled_from([(1, 1), (4, 2)]),
)
def test_route_gives_distinct_experts_whatever_the_weights(scores, gate, groups):
    with np.errstate(all="ignore"):
        ids, _ = formulas.route(
            np.ones(1, np.float32), scores[:, None], n_used=4, gate=gate, normalise=True, scale=1.0,
            n_groups=groups[0], n_groups_used=groups[1], n_best_of_group=2,
        )  # fmt: skip
    assert len(set(ids.tolist())) == 4
    assert all(0 <= i < 8 for i in ids)


def test_nan_is_chosen_last():
    w = np.array([np.nan, -5.0, np.nan, 1.0])[:, None]
    ids, _ = formulas.route(np.ones(1), w, n_used=3, gate="sigmoid", **ROUTE)
    assert ids.tolist() == [3, 1, 0]


def test_nan_does_not_spoil_its_group():
    w = np.array([3.0, 2.0, np.nan, 1.0, 1.0, 1.0])[:, None]
    ids, _ = formulas.route(np.ones(1), w, n_used=2, gate="sigmoid", **(ROUTE | {"n_groups": 2}))
    assert ids.tolist() == [0, 1]


def test_products_by_head():
    rng = np.random.default_rng(11)
    w, x = rng.normal(size=(3, 4, 5)), rng.normal(size=(3, 5))
    assert np.allclose(formulas.head_matmul(x, w), np.einsum("hoi,hi->ho", w, x))
    assert np.array_equal(formulas.repeat(x[:1], n_heads=2), [x[0], x[0]])


def test_experts_and_mix(rng):
    stack, x = rng.normal(size=(3, 5, 4)), rng.normal(size=4)
    rows = formulas.expert_matmul(x, np.array([2, 0]), stack)
    assert np.array_equal(rows, [stack[2] @ x, stack[0] @ x])
    each = formulas.expert_matmul(rng.normal(size=(2, 4)), np.array([1, 1]), stack)
    assert not np.array_equal(each[0], each[1])
    assert formulas.mix(rows, np.array([0.25, 4.0])) == pytest.approx(0.25 * rows[0] + 4 * rows[1])


# Quantised activations


@given(
    hnp.arrays(np.float32, 64, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
    st.sampled_from([32, 64]),
)
def test_quantised_rows_are_as_near_as_their_codes_allow(x, block):
    """Codes are half a step away at most, and no scale leaves them a smaller squared error."""
    blocks = x.reshape(-1, block).astype(np.float64)
    whole, scale = quantise(x, block)
    assert (np.abs(whole) <= 127).all()
    assert (whole == np.rint(whole)).all()
    step = np.abs(blocks).max(axis=1) / 127
    used = scale > 0
    assert (step[~used] < np.finfo(np.float32).tiny).all()
    step, whole, blocks = step[used, None], whole[used].astype(np.float64), blocks[used]
    assert (np.abs(whole * step - blocks) <= 0.5001 * step).all()
    # The error of the best scale is at right angles to the codes, but for the steps of 2^-14.
    error = whole * scale[used, None].astype(np.float64) - blocks
    along = np.abs((error * whole).sum(axis=1))
    steps = np.abs(whole).sum(axis=1) / 2**15 + 1e-6 * (whole**2).sum(axis=1)
    assert (along <= 1.001 * step[:, 0] * steps + np.finfo(np.float32).tiny * 127**2).all()


def test_a_scale_is_fitted_to_its_codes():
    """All but one of 32 lie half a step above their codes: the scale grows for them."""
    x = np.full(32, 10.4375, np.float32)
    x[0] = 127
    whole, scale = quantise(x, 32)
    assert whole[0].tolist() == [127] + [10] * 31
    wanted = (127 * 127 + 31 * 10 * 10.4375) / (127 * 127 + 31 * 100)
    assert scale[0] == pytest.approx(wanted, rel=1e-7)


def test_quantise_rounds_half_to_even_and_keeps_zeros():
    x = np.zeros(64, np.float32)
    x[:5] = 127, 0.5, 1.5, 2.5, -3.5
    whole, scale = quantise(x, 32)
    assert whole[0, :6].tolist() == [127, 0, 2, 2, -4, 0]
    # Of 1.5, 2.5 and -3.5 their codes 2, 2 and -4 are half a step away.
    assert scale.tolist() == [1 + np.float32((-1 + 1 - 2) / (127**2 + 4 + 4 + 16)), 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_quantise_shows_what_is_not_finite(bad):
    x = np.ones(64, np.float32)
    x[40] = bad
    made = rounded(x, 32)
    assert np.isfinite(made[:32]).all()
    assert not np.isfinite(made[32:]).any()


def test_quantised_product_is_the_sum_over_whole_blocks(rng):
    """Q8_0: sum over blocks of d_w d_a (whole dot whole), from the bytes of the file."""
    raw = quants.quantize(rng.normal(size=(6, 96)).astype(np.float32), Type.Q8_0)
    x = rng.normal(size=96).astype(np.float32)
    blocks = raw.reshape(6, 3, 34)
    d_w = blocks[..., :2].copy().view(np.float16)[..., 0].astype(np.float64)
    whole_w = blocks[..., 2:].copy().view(np.int8).astype(np.int64)
    amax = np.abs(x.reshape(3, 32)).max(axis=1)
    whole_a = np.rint(x.reshape(3, 32) * (np.float32(127) / amax)[:, None]).astype(np.int64)
    d_a = (x.reshape(3, 32).astype(np.float64) * whole_a).sum(axis=1) / (whole_a**2).sum(axis=1)
    wanted = ((whole_w * whole_a).sum(axis=2) * d_w * d_a).sum(axis=1)
    matrix = QuantisedMatrix(quants.dequantize(raw, Type.Q8_0).astype(np.float64), 32)
    assert matrix @ x == pytest.approx(wanted, rel=1e-5)
    assert np.abs(matrix @ x - matrix.values @ x).max() > 1e-4
