"""The written arithmetic of the kernels: its fused multiply-add, and each operation bit for bit."""

from fractions import Fraction

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants
from harness.generated import NATIVE, QUANTISED, random_matrix
from harness.search import searching
from hypothesis import example, given
from hypothesis import strategies as st
from programs import Raw, Tensor, random_tensors

from mtpcore._ext import _fma
from mtpcore._ext._cpu import available_isas, use_isa
from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.cpu.store import CpuStore
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.backends.reference.arithmetic import OPERATIONS
from mtpcore.backends.reference.arithmetic.fused import fma
from mtpcore.backends.reference.arithmetic.sums import sum_of_lanes
from mtpcore.errors import BackendError
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.graph.ops import ACTIVATIONS, OPS
from mtpcore.memory.base import RANGE
from mtpcore.testing import Runner, Weights

SPECIAL = np.array(
    [0, -0.0, 1, -1, 1e-45, -1e-45, 1e-38, -3e-39, 88.37, -87.3, 3.4e38, -3.4e38,
     np.inf, -np.inf, np.nan], np.float32,
)  # fmt: skip

# Fused multiply-add


def rounded(exact):
    """Round a fraction to float32, half to even; ``round`` does so with whole numbers."""
    if exact == 0:
        return np.float32(0)
    exponent = abs(exact).numerator.bit_length() - exact.denominator.bit_length()
    exponent -= abs(exact) < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    made = round(exact / unit) * unit
    if abs(made) >= 2**128:
        return np.float32(np.inf if exact > 0 else -np.inf)
    return np.float32(float(made))


def as_floats(values):
    return [np.float32(value) for value in values]


few_bits = st.builds(
    lambda sign, p, q, sign_q: sign * (2.0**p + sign_q * 2.0 ** (p - q)),
    st.sampled_from([1, -1]),
    st.integers(-40, 40),
    st.integers(1, 24),
    st.sampled_from([1, 0, -1]),
)
"""Products and sums of these lie on ties, and a hair beside them."""
any_float = st.floats(width=32) | few_bits
near = st.tuples(few_bits, few_bits, st.integers(-30, 30), st.sampled_from([1, -1])).map(
    lambda t: (t[0], t[1], float(np.float32(t[0] * t[1] * 2.0 ** t[2] * t[3])))
)
"""Three of which the third is of the size of the others' product."""


@searching(500)
@given(near | st.tuples(any_float, any_float, any_float))
@example((2.0**-12 * (1 + 2.0**-23), 2.0**-12 * (1 - 2.0**-23), 1 + 2.0**-23))  # rounded twice: up
@example((2.0**-12 * (1 + 2.0**-23), 2.0**-12 * (1 - 2.0**-23), -1 - 2.0**-23))
@example((-0.0, 1.0, -0.0))
@example((1.0, 1.0, -1.0))
@example((1e-45, 0.5, 1e-45))
@example((2.0**-75 * (1 + 2.0**-23), 2.0**-75 * (1 - 2.0**-23), 2.0**-127 + 2.0**-149))
def test_fma_rounds_once(values):
    with np.errstate(all="ignore"):
        a, b, c = as_floats(values)
        made = fma(a, b, c)
        in_float64 = np.float64(a) * np.float64(b) + np.float64(c)
    assert made.dtype == np.float32
    if not np.isfinite(in_float64):  # infinities and what is not a number come from the operands
        assert np.array_equal(made, np.float32(in_float64), equal_nan=True)
        return
    wanted = rounded(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))
    assert made == wanted
    assert np.signbit(made) == np.signbit(in_float64)


def test_fma_takes_any_shapes_and_strides():
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(size=shape).astype(np.float32) for shape in ((5, 6, 7), 6, (7, 1, 1)))
    a, b = a.transpose(2, 0, 1), b[::-1]
    made = fma(a, b, c)
    assert made.shape == (7, 5, 6)
    for i, j, k in np.ndindex(made.shape):
        assert made[i, j, k] == fma(a[i, j, k], b[k], c[i, 0, 0])
    assert fma(a[:, :0], b, c).shape == (7, 0, 6)
    assert fma(a[..., :0], b[:0], c).shape == (7, 5, 0)


def test_fma_takes_no_other_values():
    one = np.ones(3, np.float32)
    for wrong in (np.ones(3), np.ones(3, np.int32), 1.0):
        with pytest.raises(TypeError, match="no float32"):
            fma(one, wrong, one)
    with pytest.raises(ValueError, match="broadcast"):
        fma(one, one[:2], one)
    with pytest.raises(IndexError, match="another shape"):
        _fma.fma(one, one, one, np.empty(4, np.float32))
    with pytest.raises(IndexError, match="more axes"):
        _fma.fma(one[None], one, one, np.empty(3, np.float32))
    with pytest.raises(TypeError, match="result"):
        _fma.fma(one, one, one, np.empty(3))


def test_lanes_are_summed_by_halves():
    """Each order of a sum that rounds gives another result; this is the one of the kernels."""
    lanes = np.array([1, 2**24, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -(2.0**24)], np.float32)
    eight = [lanes[i] + lanes[i + 8] for i in range(8)]
    four = [eight[i] + eight[i + 4] for i in range(4)]
    two = [four[i] + four[i + 2] for i in range(2)]
    assert sum_of_lanes(lanes) == two[0] + two[1]
    assert sum_of_lanes(lanes) != sum(lanes.tolist())


# Operations


def test_every_operation_is_written_down():
    """The others have one rounding a value, only move values, or sum in their formula's order."""
    without = {
        "add",
        "mul",
        "scale_by",
        "shift_by",
        "group_ids",
        "given_ids",
        "pair_ids",
        "scale_chosen",
        "token_ids",
        "embed",
        "embed_codes",
        "embed_positions",
        "embed_by_position",
        "embedding_rows",
        "outputs",
        "concat",
        "slice",
        "split_heads",
        "merge_heads",
        "repeat",
        "keep_best",
        "embed_ids",
    }
    assert OPERATIONS.keys() | without == OPS.keys()
    assert not OPERATIONS.keys() & without


each_operation = searching(25)
isas = st.sampled_from(available_isas())
sizes = st.sampled_from(["plain", "wide", "special"])
seeds = st.integers(0, 2**32 - 1)


@st.composite
def values(draw, *shape):
    """Draw float32 of ordinary sizes, of all sizes, or with what is not a number among them."""
    rng, size = np.random.default_rng(draw(seeds)), draw(sizes)
    x = rng.normal(0, 2, shape)
    if size == "wide":
        x = x * 2.0 ** rng.integers(-149, 120, shape)
    x = x.astype(np.float32)
    if size == "special":
        few = rng.random(shape) < draw(st.sampled_from([0.02, 0.3, 1.0]))
        x = np.where(few, rng.choice(SPECIAL, shape), x)
    return x


def assert_same_bits(made, wanted):
    """Values that are not numbers count as equal, whatever their bits."""
    assert made.keys() == wanted.keys()
    for name in wanted:
        a, b = made[name], wanted[name]
        assert a.dtype == b.dtype == np.float32
        assert a.shape == b.shape
        differs = (a.view(np.uint32) != b.view(np.uint32)) & ~(np.isnan(a) & np.isnan(b))
        at = tuple(int(i) for i in np.argwhere(differs)[0]) if differs.any() else None
        assert at is None, f"{name}{list(at)}: {float(a[at]).hex()} instead of {float(b[at]).hex()}"


def outcome(backend, make, tensors, rows, axes, feeds, kv_dtype):
    """Run a program of slots; return what each batch puts out, and the memory's digest."""
    slots = {name: x.shape[1] for name, x in rows.items()}
    g = GraphBuilder("test", tensors, slots=slots, axes=axes)
    program = g.finish(Outputs(**make(g)))
    runner = Runner(backend, program, Weights(tensors), kv_dtype=kv_dtype, n_ctx=RANGE + 300)
    for store in (group.store for group in runner.memory.groups):
        for array in [store.data] if isinstance(store, CpuStore) else store._arrays:
            array.view(np.uint8)[:] = 0xFF  # what is stored nowhere yet is not a number
    made, begin = [], 0
    for feed in feeds:
        options = {**feed}
        end = begin + options.pop("n")
        fed = {name: np.ascontiguousarray(x[begin:end]) for name, x in rows.items()}
        made.append(runner.feed(np.zeros(end - begin, np.int32), **options, **fed))
        begin = end
    return made, runner.memory.digest(0)


def compare(isas, make, tensors, rows, *, axes=1, feeds=None, kv_dtype="f32"):
    """Compare instruction sets with the reference; ``feeds`` are further arguments, one a batch."""
    feeds = feeds or [{"n": len(next(iter(rows.values())))}]
    given = make, tensors, rows, axes, feeds, kv_dtype
    wanted, written = outcome(ReferenceBackend(quantise_activations=True), *given)
    for isa in isas:
        use_isa(isa)
        made, digest = outcome(CpuBackend(), *given)
        for ours, theirs in zip(made, wanted, strict=True):
            assert_same_bits(ours, theirs)
        if all(np.isfinite(x).all() for x in rows.values()):
            assert digest == written


widths = st.integers(1, 40)
counts = st.integers(1, 10)


@each_operation
@given(st.data(), isas, widths, counts)
def test_values_one_by_one(data, isa, width, n):
    tensors = {"w.weight": Tensor(data.draw(values(width)))}

    def make(g):
        a, b = g.inputs["a"], g.inputs["b"]
        return {
            "add": g.add(a, b),
            "mul": g.mul(a, b),
            "scale": g.scale(a, -1.7),
            "clamp": g.clamp(a, 0.3),
            "xielu": g.xielu(a, alpha_p=0.7, alpha_n=1.3, beta=0.5, eps=-1e-6),
            "other_xielu": g.xielu(a, alpha_p=-2.0, alpha_n=0.0, beta=1e-3, eps=0.2),
            "scale_by": g.scale_by(a, "w.weight"),
            "shift_by": g.shift_by(a, "w.weight"),
            **{kind: g.activation(a, kind) for kind in ACTIVATIONS},
            **{"gated_" + kind: g.gated(a, b, kind) for kind in ACTIVATIONS},
            "limited": g.gated(a, b, "gelu_sigmoid", limit=1.5, offset=1),
            "shifted": g.gated(a, b, offset=1),
        }

    compare([isa], make, tensors, {name: data.draw(values(n, width)) for name in "ab"})


@each_operation
@given(st.data(), isas, widths, counts, st.integers(1, 5))
def test_a_value_for_each_head(data, isa, width, n, n_heads):
    def make(g):
        return {"y": g.merge_heads(g.mul(g.split_heads(g.inputs["a"], n_heads), g.inputs["b"]))}

    rows = {"a": data.draw(values(n, n_heads * width)), "b": data.draw(values(n, n_heads))}
    compare([isa], make, {}, rows)


@each_operation
@given(st.data(), isas, counts, st.sampled_from([1, 3, 8192, 2**31 - 1]), st.integers(0, 1))
def test_factors_of_positions(data, isa, n_rows, n, offset):
    def make(g):
        a, positions = g.inputs["a"], g.inputs.positions
        sharpened = g.scale_by_position(a, positions, beta=0.1, n=n, offset=offset)
        heads = g.scale_by_position(g.split_heads(a, 2), positions, beta=-3.0, n=n, offset=offset)
        return {"rows": sharpened, "heads": g.merge_heads(heads)}

    rng = np.random.default_rng(data.draw(seeds))
    positions = rng.integers(0, 2 ** rng.integers(1, 32, (n_rows, 2)), dtype=np.int64)
    feeds = [{"n": n_rows, "positions": positions.astype(np.int32)}]
    compare([isa], make, {}, {"a": data.draw(values(n_rows, 14))}, axes=2, feeds=feeds)


def test_activations_everywhere():
    x = np.linspace(-110, 110, 20001, dtype=np.float32)
    x = np.concatenate([x, x / 100, x / 1e4, x * 1e30, SPECIAL])[None]
    compare(
        available_isas(),
        lambda g: {
            "xielu": g.xielu(g.inputs["x"], alpha_p=0.7, alpha_n=1.3, beta=0.5, eps=-1e-6),
            **{k: g.activation(g.inputs["x"], k) for k in ACTIVATIONS},
        },
        {},
        {"x": x},
    )


@each_operation
@given(st.data(), isas, widths, counts, st.sampled_from([1e-5, 1e-6, 0.0]))
def test_norms(data, isa, width, n, eps):
    tensors = random_tensors(1, w=(width,), b=(width,), h=(7,))

    def make(g):
        a, heads = g.inputs["a"], g.split_heads(g.inputs["heads"], 3)
        return {
            "rms": g.rms_norm(a, "w.weight", eps),
            "plain_rms": g.rms_norm(a, None, eps),
            "rms_of_heads": g.merge_heads(g.rms_norm(heads, "h.weight", eps)),
            "l2": g.l2_norm(a, eps),
            "l2_of_heads": g.merge_heads(g.l2_norm(heads, eps)),
            "layer": g.layer_norm(a, "w.weight", "b.weight", eps),
            "plain_layer": g.layer_norm(a, None, None, eps),
        }

    rows = {"a": data.draw(values(n, width)), "heads": data.draw(values(n, 21))}
    compare([isa], make, tensors, rows)


@each_operation
@given(st.data(), isas, widths, counts, st.sampled_from([1.6, 0.0, -0.5]))
def test_cutoffs(data, isa, width, n, n_deviations):
    def make(g):
        a, heads = g.inputs["a"], g.split_heads(g.inputs["heads"], 3)
        return {
            "rows": g.gaussian_topk(a, n_deviations),
            "heads": g.merge_heads(g.gaussian_topk(heads, n_deviations)),
        }

    compare([isa], make, {}, {"a": data.draw(values(n, width)), "heads": data.draw(values(n, 21))})


@each_operation
@given(st.data(), isas, widths, st.integers(1, 14), st.integers(1, 6))
def test_rows_of_blocks(data, isa, width, n, size):
    tensors = {"w.weight": Tensor(data.draw(values(size, size, width)))}

    def make(g):
        x = g.inputs["a"]
        return {"mean": g.block_mean(x, size), "mix": g.block_mix(x, "w.weight")}

    compare([isa], make, tensors, {"a": data.draw(values(n, width))})


@each_operation
@given(st.data(), isas, widths, st.integers(1, 14), st.integers(1, 6), st.integers(1, 4))
def test_convolutions_of_blocks(data, isa, each, n, size, n_taps):
    n_groups = data.draw(st.integers(1, 3))
    width = each * n_groups
    tensors = {"w.weight": Tensor(data.draw(values(2, n_taps, width)))}

    def make(g):
        a, changes = g.inputs["a"], g.inputs["changes"]
        return {
            f"of_part_{part}": g.block_conv(a, changes, "w.weight", size=size, part=part)
            for part in range(2)
        }

    rows = {
        "a": data.draw(values(n, width)),
        "changes": data.draw(values(n, n_taps * n_groups)),
    }
    compare([isa], make, tensors, rows)


@each_operation
@given(st.data(), isas, st.integers(1, 90), counts, st.integers(1, 20))
def test_the_best_of_a_row(data, isa, width, n_rows, n):
    """Whatever is in it: equal values, infinities and what is not a number."""
    few = st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 2.5, np.inf, np.nan])
    x = data.draw(values(n_rows, width))
    at = data.draw(st.lists(st.integers(0, x.size - 1), max_size=40))
    for i in at:
        x.flat[i] = data.draw(few)
    compare([isa], lambda g: {"best": g.keep_best(g.inputs["a"], n)}, {}, {"a": x})


@each_operation
@given(st.data(), isas, st.integers(1, 90), counts, st.integers(1, 20))
def test_the_best_of_a_row_and_their_shares(data, isa, width, n_rows, n):
    n = min(n, width)
    few = st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 2.5, np.inf, np.nan])
    x = data.draw(values(n_rows, width))
    for i in data.draw(st.lists(st.integers(0, x.size - 1), max_size=40)):
        x.flat[i] = data.draw(few)
    table = random_tensors(5, t=(width, 7))

    def make(g):
        ids, shares = g.find_best(g.inputs["a"], n)
        return {
            "shares": g.merge_heads(shares),
            "rows": g.merge_heads(g.embed_ids(ids, "t.weight")),
        }

    compare([isa], make, table, {"a": x})


@each_operation
@given(st.data(), isas, counts, st.integers(1, 4), st.integers(1, 5), st.integers(1, 20))
def test_candidates_of_blocks(data, isa, n_rows, n, size, each):
    n_heads, first = data.draw(st.integers(1, 3)), data.draw(st.integers(0, size - 1))
    width, n_columns = n_heads * each, 6
    tensors = random_tensors(6, b=(n_heads, 2 * size - 1))

    def make(g):
        q, k, v = (g.split_heads(g.inputs[name], n) for name in "qkv")
        ids, _ = g.find_best(g.inputs["a"], n)
        of_blocks = {"size": size, "first": first}
        walk = g.block_walk(ids, g.inputs["start"], q, k, width=n_columns, **of_blocks)
        # What lies apart in wider rows is read where it is.
        wide = g.concat(q, k, v)
        q, k = g.slice(wide, 0, width), g.slice(wide, width, 2 * width)
        attended = g.block_attention(q, k, v, "b.weight", scale=0.3, **of_blocks)
        return {"attended": g.merge_heads(attended), "walk": walk}

    rows = {name: data.draw(values(n_rows, n * width)) for name in "qkv"}
    rows |= {"a": data.draw(values(n_rows, n_columns)), "start": data.draw(values(n_rows, width))}
    compare([isa], make, tensors, rows)


@each_operation
@given(st.data(), isas, counts, st.integers(1, 20), st.sampled_from(["halves", "pairs"]))
def test_rope(data, isa, n, pairs, style):
    tensors = {"f.weight": Tensor(np.random.default_rng(2).uniform(0.5, 4, pairs))}

    def make(g):
        x, p = g.split_heads(g.inputs["a"], 2), g.inputs.positions
        frequencies = [3e4 ** (-i / pairs) for i in range(pairs)]
        axes = [i % 3 for i in range(pairs)]
        rope = {"axes": axes, "style": style}
        return {
            "plain": g.merge_heads(g.rope(x, p, frequencies, **rope)),
            "magnitude": g.merge_heads(g.rope(x, p, frequencies, magnitude=1.3, **rope)),
            "factors": g.merge_heads(g.rope(x, p, frequencies, factors="f.weight", **rope)),
        }

    positions = np.random.default_rng(data.draw(seeds)).integers(0, 2**20, (n, 3), np.int32)
    rows = {"a": data.draw(values(n, 2 * (2 * pairs + 3)))}
    compare([isa], make, tensors, rows, axes=3, feeds=[{"n": n, "positions": positions}])


def matrix(rng, kind, *shape):
    """Make a matrix of any codes; one scale in forty is any float16 at all."""
    raw = random_matrix(rng, kind, *shape).view(np.uint8)
    block = quants.GGML_QUANT_SIZES[Type[kind]]
    if kind in QUANTISED:
        blocks = raw.reshape(-1, block[1]).copy()
        odd = rng.random(len(blocks)) < 0.025
        at = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208}.get(kind, 0)
        blocks[odd, at : at + 2] = rng.integers(0, 256, (odd.sum(), 2))
        raw = blocks.reshape(raw.shape)
    return Raw(raw, kind, shape)


@pytest.mark.parametrize("kind", NATIVE)
@searching(12)
@given(st.data(), isas, st.integers(1, 70), counts)
def test_products(kind, data, isa, n_outputs, n):
    rng = np.random.default_rng(data.draw(seeds))
    n_blocks = data.draw(st.integers(1, 4))
    n_clusters = next(n for n in (5, 3, 2, 1) if n_outputs % n == 0)
    columns = n_blocks * (quants.GGML_QUANT_SIZES[Type[kind]][0] if kind in QUANTISED else 13)
    tensors = {
        "w.weight": matrix(rng, kind, n_outputs, columns),
        "e.weight": matrix(rng, kind, 3, n_outputs, columns),
        "order.weight": Tensor(rng.permutation(n_outputs)),
        **random_tensors(
            4, b=(n_outputs,), r=(3, columns), eb=(3, n_outputs), c=(n_clusters, columns)
        ),
    }

    def make(g):
        a, b = g.inputs["a"], g.inputs["b"]
        ids, _ = g.route(a, "r.weight", n_used=2)
        clusters, _ = g.route(a, "c.weight", n_used=min(2, n_clusters))
        return {
            "matmul": g.matmul(a, "w.weight"),
            "bias": g.matmul(a, "w.weight", "b.weight"),
            "expert_matmul": g.merge_heads(g.expert_matmul(a, ids, "e.weight")),
            "biases_of_experts": g.merge_heads(g.expert_matmul(a, ids, "e.weight", "eb.weight")),
            "cluster_matmul": g.cluster_matmul(a, clusters, "w.weight", "order.weight"),
            "head_matmul": g.merge_heads(
                g.head_matmul(g.split_heads(g.concat(a, b, a), 3), "e.weight")
            ),
            "rank_matmul": g.merge_heads(
                g.rank_matmul(g.split_heads(g.concat(a, b, a), 3), "w.weight", "b.weight")
            ),
        }

    compare([isa], make, tensors, {name: data.draw(values(n, columns)) for name in "ab"})


@pytest.mark.parametrize("kind", NATIVE)
def test_rows_of_tables(kind):
    rng = np.random.default_rng(3)
    tensors = {"w.weight": matrix(rng, kind, 40, 512)}
    found = []
    for backend in (CpuBackend(), ReferenceBackend(quantise_activations=True)):
        g = GraphBuilder("test", tensors)
        program = g.finish(Outputs(y=g.embed(g.inputs.tokens, "w.weight")))
        found.append(Runner(backend, program, Weights(tensors)).feed(np.arange(40)))
    assert_same_bits(*found)


ROUTES = [
    {"gate": "sigmoid"},
    {"gate": "softmax", "normalise": False, "scale": 2.5},
    {"gate": "softmax", "n_groups": 4, "n_groups_used": 2},
    {"gate": "softmax", "n_groups": 4, "n_groups_used": 2, "n_best_of_group": 1},
    {"gate": "sigmoid", "n_groups": 12, "n_groups_used": 5},
]


@each_operation
@given(st.data(), isas, counts, st.sampled_from(ROUTES), st.integers(1, 5))
def test_experts(data, isa, n, options, n_used):
    tensors = random_tensors(5, r=(12, 20), up=(12, 35, 20), of_groups=(4, 35, 20))
    correction = data.draw(values(12) | st.just(np.zeros(12)))  # else it may decide for all rows
    tensors["c.weight"] = Tensor(correction)
    tensors["bias.weight"], tensors["f.weight"] = (Tensor(data.draw(values(12))) for _ in range(2))
    more = {"bias": "bias.weight", "factors": "f.weight"} if data.draw(st.booleans()) else {}
    if data.draw(st.booleans()):
        tensors["r.weight"] = Tensor(np.repeat(tensors["r.weight"].array()[:4], 3, axis=0))  # ties

    def make(g):
        route = {"n_used": n_used, **options, **more}
        ids, shares = g.route(g.inputs["a"], "r.weight", "c.weight", **route)
        up = g.expert_matmul(g.inputs["a"], ids, "up.weight")
        return {
            "route": shares,
            "expert_matmul": g.merge_heads(up),
            "scale_chosen": g.merge_heads(g.scale_chosen(up, ids, "f.weight")),
            "mix": g.mix(up, shares),
            "group_ids": g.mix(
                g.expert_matmul(g.inputs["a"], g.group_ids(ids, 3), "of_groups.weight"), shares
            ),
        }

    compare([isa], make, tensors, {"a": data.draw(values(n, 20))})


@each_operation
@given(st.data(), isas, counts, st.integers(1, 4), widths)
def test_chosen_rows_are_added(data, isa, n, n_used, width):
    given = data.draw(values(n, n_used))

    def make(g):
        ids = g.given_ids(g.inputs.codes(n_used), 3)
        heads = g.split_heads(g.inputs["x"], n_used)
        return {"add_chosen": g.add_chosen(g.inputs["y"], heads, ids, g.inputs["shares"])}

    rows = {"x": data.draw(values(n, n_used * width)), "y": data.draw(values(n, width))}
    rows["shares"] = given
    feeds = [{"n": n, "codes": np.random.default_rng(n).integers(-1, 4, (n, n_used), np.int32)}]
    compare([isa], make, {}, rows, feeds=feeds)


ATTENTIONS = [
    {},
    {"window": 37},
    {"sinks": "sinks.weight"},
    {"mask": "block"},
    {"mask": "block", "window": 70},
    {"bias": "bias.weight", "max_distance": 50},
    {"bias": "bias.weight", "max_distance": 6, "mask": "block", "sinks": "sinks.weight"},
    {"softcap": 5.0},
    {"softcap": 0.4, "window": 37, "sinks": "sinks.weight"},
    {"max_alibi_bias": 8.0},
    {"max_alibi_bias": 3.0, "mask": "block", "softcap": 50.0},
]


@searching(40)
@given(
    st.data(),
    isas,
    st.sampled_from([*ATTENTIONS, "latent"]),
    st.sampled_from([(24, 16), (5, 7), (33, 80), (130, 67)]),
    st.sampled_from(["f32", "f16", "q8_0"]),
    st.lists(st.integers(1, 70), min_size=1, max_size=3),
    st.integers(0, 130) | st.integers(RANGE - 70, RANGE + 5),
)
def test_attention(data, isa, options, head_widths, kv_dtype, batches, place):
    """Batch after batch, from any place on; the last one may be a tree."""
    k_width, v_width = head_widths
    tensors = {
        "sinks.weight": Tensor(data.draw(values(6))),
        "bias.weight": Tensor(data.draw(values(11, 6))),
    }

    def make(g):
        q, k, v = (
            g.split_heads(g.inputs[name], heads)
            for name, heads in zip("qkv", (6, 2, 2), strict=True)
        )
        if options == "latent":
            latent = g.attention(q, k, min(k_width, v_width), layer=0, scale=0.1)
            return {"y": g.merge_heads(latent)}
        return {"y": g.merge_heads(g.attention(q, k, v, layer=0, scale=0.1, **options))}

    feeds = [{"n": n} for n in batches]
    feeds[0]["place"] = place
    if "mask" not in options and data.draw(st.booleans()):
        n = batches[-1] = feeds[-1]["n"] = min(batches[-1], 20)
        feeds[-1]["parent"] = [data.draw(st.integers(max(i - 3, -1), i - 1)) for i in range(n)]
    n = sum(batches)
    rows = {
        "q": data.draw(values(n, 6 * k_width)),
        "k": data.draw(values(n, 2 * k_width)),
        "v": data.draw(values(n, 2 * v_width)),
    }
    compare([isa], make, tensors, rows, feeds=feeds, kv_dtype=kv_dtype)


@searching(20)
@given(
    st.data(),
    isas,
    st.sampled_from([(24, 16), (5, 7), (33, 80)]),
    st.sampled_from(["f32", "f16", "q8_0"]),
    st.sampled_from([1, 63, 64, 65, RANGE + 70]),
    st.integers(1, 30),
    st.integers(1, 3),
)
def test_cross_attention(data, isa, head_widths, kv_dtype, n_source, n, threads):
    """Queries of any batch, at any place, with rows that were delivered before."""
    use_isa(isa)
    k_width, v_width = head_widths
    width = 2 * (k_width + v_width)
    source = data.draw(values(n_source, width))
    queries = data.draw(values(n, 6 * k_width))
    g = GraphBuilder("test", {}, slots={"q": 6 * k_width, "rows": width}, whole=["rows"])
    q, rows = g.split_heads(g.inputs["q"], 6), g.inputs["rows"]
    k = g.split_heads(g.slice(rows, 0, 2 * k_width), 2)
    v = g.split_heads(g.slice(rows, 2 * k_width, width), 2)
    y = g.merge_heads(g.cross_attention(q, k, v, layer=7, scale=0.1))
    program = g.finish(Outputs(y=y))
    made, wanted = (
        Runner(backend, program, Weights({}), kv_dtype=kv_dtype, n_ctx=RANGE + 300, n_batch=2048,
               threads=threads)
        for backend in (CpuBackend(), ReferenceBackend(quantise_activations=True))
    )  # fmt: skip
    for runner in (made, wanted):
        runner.deliver(0, rows=source)
    tokens = np.zeros(n, np.int32)
    for place in (5, None):
        assert_same_bits(*(r.feed(tokens, place=place, q=queries) for r in (made, wanted)))


HEADS = {
    "alone": (2, 2, 64, 64),
    "threes": (6, 2, 96, 96),
    "fours": (8, 2, 128, 128),
    "eights": (8, 1, 64, 64),
    "sevens, wider keys": (7, 1, 192, 128),
    "pairs, wide": (4, 2, 256, 256),
    "latent": (5, 1, 576, 512),
}
"""Heads as models have them: of queries, of keys, width of keys, of values."""


@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("heads", HEADS)
def test_attention_over_pages(heads, kv_dtype):
    """Rows of several pages, then few rows that read them, then a tree; for each window."""
    n_heads, n_key_heads, k_width, v_width = HEADS[heads]
    feeds = [{"n": 60, "place": 100}, {"n": 1}, {"n": 4}, {"n": 8}]
    feeds.append({"n": 5, "parent": [-1, 0, 0, 1, 1]})
    n = sum(feed["n"] for feed in feeds)
    rng = np.random.default_rng(11)
    widths = {"q": n_heads * k_width, "k": n_key_heads * k_width, "v": n_key_heads * v_width}
    rows = {name: rng.normal(0, 2, (n, w)).astype(np.float32) for name, w in widths.items()}
    tensors = {"sinks.weight": Tensor(rng.normal(0, 1, n_heads))}
    for window in (0, 70):

        def make(g):
            q = g.split_heads(g.inputs["q"], n_heads)
            k, v = (g.split_heads(g.inputs[name], n_key_heads) for name in "kv")
            options = {"window": window, "sinks": "sinks.weight", "scale": k_width**-0.5}  # noqa: B023
            return {
                "y": g.merge_heads(
                    g.attention(q, k, v_width if heads == "latent" else v, layer=0, **options)
                )
            }

        compare(available_isas(), make, tensors, rows, feeds=feeds, kv_dtype=kv_dtype)


def test_attention_needs_paged_memory():
    g = GraphBuilder("test", {}, slots={"a": 8})
    x = g.split_heads(g.inputs["a"], 2)
    program = g.finish(Outputs(y=g.merge_heads(g.attention(x, x, x, layer=0, scale=1.0))))
    runner = Runner(ReferenceBackend(quantise_activations=True), program, Weights({}))
    runner.memory = type("Nothing", (), {"length": lambda *_: 0, "reserve": lambda *_: None})()
    with pytest.raises(BackendError, match="needs paged memory"):
        runner.feed([0], a=np.zeros((1, 8), np.float32))
