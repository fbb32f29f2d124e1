"""Operations on rows, bit for bit: those of the definition, and the order of the kernels' sums."""

import numpy as np
import pytest
from harness.cuda_orders import above_cutoff, normalised
from harness.cuda_steps import carry_out

from mtpcore.backends.cuda.launch.codes import Codes, quantise
from mtpcore.backends.cuda.launch.rows import LAUNCHERS, normalise
from mtpcore.backends.reference import formulas
from mtpcore.backends.reference.arithmetic import candidates, elementwise, experts
from mtpcore.graph.ops import ACTIVATIONS

SPECIAL = np.array(
    [0, -0.0, 1, -1, 1e-45, -1e-45, 1e-38, -3e-39, 88.37, -87.3, 3.4e38, -3.4e38,
     np.inf, -np.inf, np.nan], np.float32,
)  # fmt: skip


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def of_all_sizes(seed, *shape):
    """Values from 1e-20 to 1e20, most near 1, and those where functions bend."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * 10.0 ** rng.choice([-20, -3, 0, 0, 1, 2, 20], shape)
    return np.where(rng.random(shape) < 0.2, rng.choice(SPECIAL, shape), values).astype(np.float32)


def same(made, wanted):
    return made.dtype == np.float32 and made.shape == wanted.shape and bits(made) == bits(wanted)


def bits(values):
    """All that is not a number counts alike."""
    return np.where(np.isnan(values), np.float32(np.nan), values).tobytes()


def carried_out(device, op, inputs, weights, row_shape, **attrs):
    (made,) = carry_out(
        device, LAUNCHERS[op], inputs, weights, (row_shape, np.float32), n_batch=9, **attrs
    )
    return made


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (2, 3, 50)])
def test_arithmetic_of_values(device, shape):
    a, b = of_all_sizes(0, *shape), of_all_sizes(1, *shape)
    w, one = of_all_sizes(2, shape[-1]), floats(3, 1)
    row = shape[1:]
    assert same(carried_out(device, "add", [a, b], [], row), a + b)
    assert same(carried_out(device, "mul", [a, b], [], row), a * b)
    assert same(
        carried_out(device, "scale", [a], [], row, factor=0.3), elementwise.scale(a, factor=0.3)
    )
    assert same(
        carried_out(device, "clamp", [a], [], row, limit=0.3), elementwise.clamp(a, limit=0.3)
    )
    if len(shape) == 3:
        of_heads = of_all_sizes(21, *shape[:2])
        assert same(carried_out(device, "mul", [a, of_heads], [], row), a * of_heads[..., None])
    of_rows = [of_all_sizes(22, *row), of_all_sizes(23, *row[:-1], 1)] if len(shape) == 3 else []
    for weight in (w, one, *of_rows):
        assert same(carried_out(device, "scale_by", [a], [weight], row), weight * a)
        assert same(carried_out(device, "shift_by", [a], [weight], row), weight + a)


@pytest.mark.parametrize("row", [(1,), (300,), (3, 100)])
@pytest.mark.parametrize(("n", "offset"), [(1, 0), (8192, 1), (2**31 - 1, 2**31 - 1)])
def test_factors_of_positions(device, row, n, offset):
    x = of_all_sizes(22, 6, *row)
    positions = np.array([0, 1, 8190, 8191, 1 << 20, 2**31 - 1], np.int32)
    positions = np.stack([positions, positions[::-1]], axis=1)
    attrs = {"beta": 0.1, "n": n, "offset": offset}
    made = carried_out(device, "scale_by_position", [x, positions], [], row, **attrs)
    assert same(made, elementwise.scale_by_position(x, positions, **attrs))
    if n == 8192:
        assert same(made[:3], x[:3])
        assert made[3:].tobytes() != x[3:].tobytes()


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (130, 8)])
def test_groups_of_experts(device, shape):
    ids = np.random.default_rng(20).integers(0, 12, shape, np.int32)
    out, size = (shape[1:], np.int32), {"n_batch": len(ids), "n_of_group": 4}
    (made,) = carry_out(device, LAUNCHERS["group_ids"], [ids], [], out, **size)
    assert made.tobytes() == (ids // 4).tobytes()


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (130, 8)])
def test_given_ids(device, shape):
    given = np.random.default_rng(20).integers(-3, 12, shape, np.int32)
    out, size = (shape[1:], np.int32), {"n_batch": len(given), "n": 7, "rows": "n_tokens"}
    (made,) = carry_out(device, LAUNCHERS["given_ids"], [given], [], out, **size)
    assert made.tobytes() == np.where((given >= 0) & (given < 7), given, 7).tobytes()


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (130, 8)])
def test_pairs_of_ids(device, shape):
    rng = np.random.default_rng(20)
    first = rng.integers(0, 4, (shape[0], 3), np.int32)
    second = rng.integers(0, 7, shape, np.int32)
    sizes = {"n_batch": len(first), "column": 1, "n_first": 4, "n_second": 7}
    out = shape[1:], np.int32
    (made,) = carry_out(device, LAUNCHERS["pair_ids"], [first, second], [], out, **sizes)
    one = first[:, 1:2]
    wanted = np.where(one == 3, 21, 7 * one + second)
    assert made.tobytes() == wanted.astype(np.int32).tobytes()


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (130, 8)])
@pytest.mark.parametrize("absent", [-1, 6])
def test_rows_of_tables(device, shape, absent):
    rng = np.random.default_rng(20)
    tokens, tables = (rng.integers(-1, 7, shape[0], np.int32), rng.integers(0, 4, shape, np.int32))
    sizes = {"n_batch": len(tokens), "n_first": 4, "n_second": 7, "absent": absent}
    out = shape[1:], np.int32
    (made,) = carry_out(device, LAUNCHERS["token_ids"], [tokens, tables], [], out, **sizes)
    row = np.where(tokens < 0, absent, tokens)[:, None]
    wanted = np.where((row >= 0) & (tables < 3), tables * 7 + row, 21)
    assert made.tobytes() == wanted.astype(np.int32).tobytes()


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 100)])
def test_factors_of_experts(device, shape):
    x, w = of_all_sizes(18, *shape), of_all_sizes(19, 7)
    ids = np.random.default_rng(20).integers(0, 7, shape[:2], np.int32)
    made = carried_out(device, "scale_chosen", [x, ids], [w], shape[1:])
    assert same(made, w[ids][..., None] * x)


@pytest.mark.parametrize(("width", "n"), [(1, 1), (40, 1), (40, 256), (3000, 16)])
def test_the_best_of_a_row(device, width, n):
    x = of_all_sizes(6, 5, width)
    x[:, ::3] = x[:, :1]
    made = carried_out(device, "keep_best", [x], [], (width,), n=n)
    assert same(made, np.stack([formulas.keep_best(row, n=n) for row in x]))


@pytest.mark.parametrize(("width", "n"), [(1, 1), (40, 1), (40, 40), (3000, 16)])
def test_the_best_of_a_row_and_their_shares(device, width, n):
    x = of_all_sizes(7, 5, width)
    x[:, ::3] = x[:, :1]
    x[0] = -np.inf
    shapes = ((n,), np.int32), ((n, 2), np.float32)
    ids, shares = carry_out(device, LAUNCHERS["find_best"], [x], [], *shapes, n_batch=9, n=n)
    wanted = candidates.find_best(x, n=n)
    assert (ids == wanted[0]).all()
    assert same(shares, wanted[1])


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations_are_those_of_the_definition(device, kind):
    x, up = of_all_sizes(4, 4, 300), of_all_sizes(5, 4, 300)
    made = carried_out(device, "activation", [x], [], (300,), kind=kind)
    assert same(made, elementwise.activation(x, kind=kind))
    for limit, offset in ((0, 0), (7.0, 1), (0.5, 0)):
        attrs = {"kind": kind, "limit": limit, "offset": offset}
        made = carried_out(device, "gated", [x, up], [], (300,), **attrs)
        assert same(made, elementwise.gated(x, up, **attrs))


def test_xielu_is_that_of_the_definition(device):
    x = of_all_sizes(24, 5, 3, 100)
    for alpha_p, alpha_n, beta, eps in ((0.7, 1.3, 0.5, -1e-6), (-2.0, 0.0, 1e-3, 0.2)):
        numbers = {"alpha_p": alpha_p, "alpha_n": alpha_n, "beta": beta, "eps": eps}
        made = carried_out(device, "xielu", [x], [], (3, 100), **numbers)
        assert same(made, elementwise.xielu(x, **numbers))


@pytest.mark.parametrize("shape", [(3, 64), (2, 300), (1, 2), (2, 3, 100), (1, 1030), (2, 6147)])
def test_cutoffs_sum_in_their_order(device, shape):
    x = 2 * floats(25, *shape) + 1
    for n in (1.5, -0.5):
        made = carried_out(device, "gaussian_topk", [x], [], shape[1:], n_deviations=n)
        assert same(made, above_cutoff(x, n))
        formula = formulas.gaussian_topk(x.astype(np.float64), n_deviations=n)
        assert np.allclose(made, formula, rtol=2e-6, atol=3e-6)
        alone = carried_out(device, "gaussian_topk", [x[-1:]], [], shape[1:], n_deviations=n)
        assert same(alone, made[-1:])


@pytest.mark.parametrize("shape", [(3, 64), (2, 300), (1, 1), (2, 3, 100), (1, 1030), (2, 6147)])
@pytest.mark.parametrize("n_weights", [0, 1, 2])
def test_norms_sum_in_their_order(device, shape, n_weights):
    x, row = floats(6, *shape) + 1, shape[1:]
    weights = [floats(7, shape[-1]), floats(8, shape[-1])][:n_weights]
    eps = 1e-5
    wanted = {
        "layer_norm": normalised(x, *weights, n=shape[-1], eps=eps, centred=True),
        "rms_norm": normalised(x, *weights[:1], n=shape[-1], eps=eps),
        "l2_norm": normalised(x, n=1, eps=eps),
    }
    given = {"layer_norm": weights, "rms_norm": weights[:1], "l2_norm": []}
    for op, expected in wanted.items():
        made = carried_out(device, op, [x], given[op], row, eps=eps)
        assert same(made, expected)
        formula = getattr(formulas, op)(x.astype(np.float64), *given[op], eps=eps)
        assert np.allclose(made, formula, rtol=2e-6, atol=1e-6)
        alone = carried_out(device, op, [x[-1:]], given[op], row, eps=eps)
        assert same(alone, made[-1:])


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize(("block", "width"), [(32, 96), (32, 4192), (256, 768), (256, 6400)])
def test_codes_of_a_norm_are_those_of_its_rows(device, op, block, width):
    """Rows of more than 4096 columns are gone through in several turns."""
    x, weights = floats(9, 3, width), [floats(10, width), floats(11, width)]
    weights = weights[: 2 if op == "layer_norm" else 1]
    shapes = [((width,), np.int8), ((width // block,), np.float32), ((width // 16,), np.int16)]

    def both(step, n_rows):
        rows, *arrays = step.outputs
        made, apart = Codes(block, *arrays[:3]), Codes(block, *arrays[3:])
        return [normalise(op, step, n_rows, made), quantise(rows, apart, n_rows)]

    rows, *codes = carry_out(
        device, both, [x], weights, ((width,), np.float32), *shapes, *shapes, eps=1e-5
    )
    assert same(rows, carried_out(device, op, [x], weights, (width,), eps=1e-5))
    for made, apart in zip(codes[:3], codes[3:], strict=True):
        assert made.tobytes() == apart.tobytes()
        assert made.any()


@pytest.mark.parametrize("style", ["halves", "pairs"])
@pytest.mark.parametrize(
    ("n_pairs", "width", "n_axes"), [(32, 64, 1), (1, 2, 1), (300, 616, 3), (4, 20, 4)]
)
@pytest.mark.parametrize("scaled", [False, True])
def test_rope_turns_as_defined(device, style, n_pairs, width, n_axes, scaled):
    rng = np.random.default_rng(9)
    x = floats(10, 5, 3, width)
    positions = rng.integers(0, 1 << 20, (5, n_axes), dtype=np.int32)
    positions[0], positions[1] = 0, np.iinfo(np.int32).max
    factors = [rng.uniform(1, 8, n_pairs).astype(np.float32)] if scaled else []
    attrs = {
        "frequencies": tuple(1e4 ** (-np.arange(n_pairs) / n_pairs)),
        "axes": tuple(int(axis) for axis in rng.integers(0, n_axes, n_pairs)),
        "style": style,
        "magnitude": 1.2 if scaled else 1.0,
    }
    made = carried_out(device, "rope", [x, positions], factors, x.shape[1:], **attrs)
    # Sine and cosine are right to a few units in the last place of a double, of which rounding to
    # float32 leaves nothing, but for one value in millions.
    assert same(made, elementwise.rope(x, positions, *factors, **attrs))


def test_parts_of_rows(device):
    a, b, c = floats(11, 3, 2, 7), floats(12, 3, 2, 1), floats(13, 3, 2, 300)
    joined = np.concatenate([a, b, c], axis=-1)
    assert same(carried_out(device, "concat", [a, b, c], [], (2, 308)), joined)
    made = carried_out(device, "slice", [joined], [], (2, 8), start=6, stop=14)
    assert same(made, joined[..., 6:14])
    one = floats(14, 3, 1, 40)
    assert same(
        carried_out(device, "repeat", [one], [], (5, 40), n_heads=5), np.repeat(one, 5, axis=1)
    )


@pytest.mark.parametrize("n_ranks", [1, 4])
def test_mix_is_a_chain_by_rank(device, n_ranks):
    x, shares = floats(15, 5, n_ranks, 130), floats(16, 5, n_ranks)
    made = carried_out(device, "mix", [x, shares], [], (130,))
    assert same(made, experts.mix(x, shares))
    assert same(carried_out(device, "mix", [x[2:3], shares[2:3]], [], (130,)), made[2:3])


@pytest.mark.parametrize("n_ranks", [1, 4])
def test_a_row_takes_only_what_it_chose(device, n_ranks):
    y, x, shares = floats(14, 6, 130), floats(15, 6, n_ranks, 130), floats(16, 6, n_ranks)
    ids = np.random.default_rng(17).integers(0, 4, (6, n_ranks), np.int32)
    ids[2], ids[3], y[2, 0] = 3, 0, -0.0
    x[ids == 3] = np.nan
    made = carried_out(device, "add_chosen", [y, x, ids, shares], [], (130,), n=3)
    assert same(made, experts.add_chosen(y, x, ids, shares, n=3))
    assert made[2].tobytes() == y[2].tobytes()
    assert made[3].tobytes() != y[3].tobytes()
