"""Every operation of the table on the CPU against its definition in float64."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from harness.attentions import ATTENTIONS, attention_program, attention_tensors
from programs import Tensor, random_tensors, trunk

from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.errors import BackendError, BatchError
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.graph.ops import ACTIVATIONS, OPS
from mtpcore.testing import Runner, Weights

pytestmark = pytest.mark.usefixtures("share_small_plans")

WIDTHS = (1, 15, 16, 17, 40)


def run_both(make, tensors, slots, *, n=11, threads=2, axes=1, positions=None, **feeding):
    """Return {output: rows} of the CPU and of the reference in float64."""
    found = []
    rng = np.random.default_rng(1)
    rows = {name: rng.normal(0, 2, (n, width)).astype(np.float32) for name, width in slots.items()}
    for kind in (CpuBackend(), ReferenceBackend("f64")):
        g = GraphBuilder("test", tensors, slots=slots, axes=axes)
        program = g.finish(Outputs(**make(g)))
        dtype = "f64" if kind.name == "reference" else "f32"
        runner = Runner(kind, program, Weights(tensors), threads=threads, kv_dtype=dtype, n_batch=n)
        found.append(runner.feed(np.arange(n) % 5, **feeding, **rows))
    return found


def assert_equal(make, tensors, slots, tolerance=2e-6, **options):
    made, wanted = run_both(make, tensors, slots, **options)
    assert made.keys() == wanted.keys()
    for name in wanted:
        scale = max(1.0, np.abs(wanted[name]).max())
        assert made[name].dtype == np.float32
        assert made[name].shape == wanted[name].shape
        assert np.abs(made[name] - wanted[name]).max() < tolerance * scale, name


def test_every_operation_has_a_lowering():
    from mtpcore.backends.cpu.lower import Lowering

    assert {op for op in OPS if not hasattr(Lowering, f"_lower_{op}")} == set()


@pytest.mark.parametrize("width", WIDTHS)
def test_values_one_by_one(width):
    tensors = random_tensors(1, w=(width,), row=(2, width), part=(2, width - width // 2))
    tensors["head.weight"] = Tensor(np.array([[0.3], [-1.7]]))

    def make(g):
        a, b = g.inputs["a"], g.inputs["b"]
        both = g.split_heads(g.concat(a, b), 2)
        kinds = {kind: g.activation(a, kind) for kind in ACTIVATIONS}
        gated = {"gated_" + kind: g.gated(a, b, kind) for kind in ACTIVATIONS}
        return {
            "sum": g.add(a, b),
            "product": g.mul(a, b),
            "scaled": g.scale(a, -1.7),
            "scaled_by": g.scale_by(a, "w.weight"),
            "shifted_by": g.shift_by(a, "w.weight"),
            "heads_scaled_by": g.merge_heads(g.scale_by(both, "w.weight")),
            "heads_shifted_by": g.merge_heads(g.shift_by(both, "w.weight")),
            **{
                f"{op}_{of}": g.merge_heads(getattr(g, op)(both, f"{of}.weight"))
                for op in ("scale_by", "shift_by")
                for of in ("row", "head")
            },
            **{
                f"cut_{op}_{of}": g.merge_heads(
                    getattr(g, op)(g.slice(both, width // 2, width), f"{of}.weight")
                )
                for op in ("scale_by", "shift_by")
                for of in ("part", "head")
            },
            "slot": a,
            **kinds,
            **gated,
        }

    assert_equal(make, tensors, {"a": width, "b": width})


def test_activations_everywhere():
    """From far below to far above zero, where they saturate."""
    x = np.linspace(-110, 110, 20001, dtype=np.float32)[:, None]
    x = np.concatenate([x, x / 1e3, x / 1e6])
    for kind in (CpuBackend(), ReferenceBackend("f64")):
        g = GraphBuilder("test", {}, slots={"x": 1})
        made = {kind: g.activation(g.inputs["x"], kind) for kind in ACTIVATIONS}
        runner = Runner(kind, g.finish(Outputs(**made)), Weights({}), n_ctx=1 << 16, n_batch=len(x))
        found = runner.feed(np.zeros(len(x), np.int32), x=x)
        if kind.name == "cpu":
            mine = found
    for kind in ACTIVATIONS:
        bound = 4e-7 * np.maximum(np.abs(x), 1)
        assert (np.abs(mine[kind] - found[kind]) <= bound).all(), kind
    # A few units in the last place, where exp(x) is small, too; below, it would be subnormal.
    softplus, wanted = (rows["softplus"][x > -87] for rows in (mine, found))
    assert (np.abs(softplus - wanted) <= 5 * 2.0**-24 * wanted).all()
    assert np.array_equal(softplus[x[x > -87] > 20], x[x > 20])


@pytest.mark.parametrize("width", WIDTHS)
def test_norms(width):
    tensors = random_tensors(1, w=(width,), b=(width,), h=(5,))

    def make(g):
        a = g.inputs["a"]
        heads = g.split_heads(g.inputs["heads"], 3)
        return {
            "rms": g.rms_norm(a, "w.weight", 1e-5),
            "plain": g.rms_norm(a, None, 1e-3),
            "length": g.l2_norm(a, 1e-6),
            "lengths_of_heads": g.merge_heads(g.l2_norm(heads, 1e-6)),
            "layer": g.layer_norm(a, "w.weight", "b.weight", 1e-5),
            "layer_plain": g.layer_norm(a, None, None, 1e-5),
            "heads": g.merge_heads(g.rms_norm(heads, "h.weight", 1e-5)),
        }

    assert_equal(make, tensors, {"a": width, "heads": 15}, tolerance=1e-5)


def test_views():
    def make(g):
        a, b = g.inputs["a"], g.inputs["b"]
        heads = g.split_heads(a, 3)
        nope, rest = g.slice(heads, 0, 5), g.slice(heads, 5, 8)
        return {
            "cut": g.slice(a, 3, 20),
            "joined": g.concat(a, b, g.slice(b, 1, 3)),
            "turned": g.merge_heads(g.concat(rest, nope)),
            "cut_of_heads": g.merge_heads(nope),
            "normed_cut": g.merge_heads(g.rms_norm(rest, None, 1e-5)),
            "sum_of_cuts": g.add(g.slice(a, 0, 7), g.slice(b, 2, 9)),
            "same": a,
        }

    assert_equal(make, {}, {"a": 24, "b": 9})


@pytest.mark.parametrize("style", ["halves", "pairs"])
def test_rope(style):
    tensors = random_tensors(3, factors=(9,))
    tensors["factors.weight"] = Tensor(np.abs(tensors["factors.weight"].array()) + 0.5)

    def make(g):
        x = g.split_heads(g.inputs["a"], 2)
        f = [3.0**-i for i in range(9)]
        axes = [i % 3 for i in range(9)]
        p = g.inputs.positions
        return {
            "plain": g.merge_heads(g.rope(x, p, f, style=style)),
            "axes": g.merge_heads(g.rope(x, p, f, style=style, axes=axes, magnitude=1.3)),
            "factors": g.merge_heads(g.rope(x, p, f[:9], style=style, factors="factors.weight")),
            "short": g.merge_heads(g.rope(x, p, f[:2], style=style)),
        }

    assert_equal(make, tensors, {"a": 40}, axes=3, place=300, tolerance=1e-5)


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_matmul(kind, threads):
    tensors = random_tensors(4, kind, w=(70, 48), v=(3, 48), b=(70,))

    def make(g):
        a = g.inputs["a"]
        return {
            "plain": g.matmul(a, "w.weight"),
            "bias": g.matmul(a, "w.weight", "b.weight"),
            "few": g.matmul(a, "v.weight"),
            "cut": g.matmul(g.slice(g.concat(a, a), 9, 57), "w.weight"),
            "outputs": g.matmul(g.output_rows(a), "v.weight"),
        }

    assert_equal(make, tensors, {"a": 48}, threads=threads, outputs=[1, 2, 10])


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_0])
def test_quantised_matmul(kind):
    tensors = random_tensors(4, kind, w=(70, 96), e=(4, 40, 96), r=(4, 96))

    def make(g):
        a = g.inputs["a"]
        ids, _ = g.route(a, "r.weight", n_used=2)
        return {
            "plain": g.matmul(a, "w.weight"),
            "experts": g.merge_heads(g.expert_matmul(a, ids, "e.weight")),
        }

    found = run_both(make, tensors, {"a": 96})
    g = GraphBuilder("test", tensors, slots={"a": 96})
    runner = Runner(
        ReferenceBackend("f64", quantise_activations=True),
        g.finish(Outputs(**make(g))),
        Weights(tensors),
        kv_dtype="f64",
    )
    rows = np.random.default_rng(1).normal(0, 2, (11, 96)).astype(np.float32)
    wanted = runner.feed(np.arange(11) % 5, a=rows)
    for name in wanted:
        assert np.abs(found[0][name] - wanted[name]).max() < 1e-5
        assert np.abs(found[0][name] - found[1][name]).max() < 0.1


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0])
@pytest.mark.parametrize("n", [1, 8, 9, 30])
def test_products_by_head(kind, n):
    """Of heads that lie side by side, cut out of wider ones, one alone, and all the same."""
    tensors = random_tensors(9, kind, w=(3, 40, 32), v=(1, 5, 32))

    def make(g):
        a = g.inputs["a"]
        heads, wide = g.split_heads(g.slice(a, 0, 96), 3), g.split_heads(a, 3)
        return {
            "whole": g.merge_heads(g.head_matmul(heads, "w.weight")),
            "cut": g.merge_heads(g.head_matmul(g.slice(wide, 8, 40), "w.weight")),
            "one": g.merge_heads(g.head_matmul(g.split_heads(g.slice(a, 5, 37), 1), "v.weight")),
            "repeated": g.merge_heads(
                g.head_matmul(g.repeat(g.split_heads(g.slice(a, 3, 35), 1), 3), "w.weight")
            ),
        }

    exact = kind in (Type.F32, Type.F16, Type.BF16)
    for threads in (1, 2, 3):
        tolerance = 1e-5 if exact else 0.02  # activations in codes of 8 bits
        assert_equal(make, tensors, {"a": 120}, n=n, threads=threads, tolerance=tolerance)


def test_repeated_heads():
    def make(g):
        a, b = g.split_heads(g.inputs["a"], 1), g.split_heads(g.inputs["b"], 3)
        return {
            "joined": g.merge_heads(g.concat(b, g.repeat(a, 3))),
            "alone": g.merge_heads(g.repeat(a, 2)),
        }

    assert_equal(make, {}, {"a": 5, "b": 12})


def test_embedding():
    tensors = random_tensors(5, Type.F16, table=(7, 33))

    def make(g):
        return {"rows": g.embed(g.inputs.tokens, "table.weight", embeddings=True)}

    rows = np.random.default_rng(1).normal(size=(11, 33)).astype(np.float32)
    made, wanted = run_both(make, tensors, {}, embeddings=rows)
    assert np.array_equal(made["rows"], wanted["rows"])


ROUTES = {
    "sigmoid": {"gate": "sigmoid"},
    "softmax": {"gate": "softmax", "normalise": False, "scale": 2.5},
    "groups": {"n_groups": 4, "n_groups_used": 2},
    "single groups": {"n_groups": 12, "n_groups_used": 5},
    "groups by their best": {"n_groups": 4, "n_groups_used": 2, "n_best_of_group": 1},
}


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("n", [1, 8, 9, 30])
def test_experts(name, n):
    tensors = random_tensors(6, r=(12, 20), c=(12,), up=(12, 35, 20), down=(12, 20, 35))

    def make(g):
        a = g.inputs["a"]
        ids, shares = g.route(a, "r.weight", "c.weight", n_used=3, **ROUTES[name])
        up = g.activation(g.expert_matmul(a, ids, "up.weight"), "relu")
        up = g.scale_chosen(up, ids, "c.weight")
        return {"y": g.mix(g.expert_matmul(up, ids, "down.weight"), shares), "shares": shares}

    for threads in (1, 2, 3):
        assert_equal(make, tensors, {"a": 20}, n=n, threads=threads, tolerance=1e-5)


def test_a_matrix_of_a_group_is_that_of_each_of_its_experts():
    """Tokens that chose several experts of a group have its row as often."""
    tensors = random_tensors(6, r=(12, 20), of_groups=(3, 35, 20))
    tensors["each.weight"] = Tensor(np.repeat(tensors["of_groups.weight"].array(), 4, axis=0))

    def make(g):
        ids, shares = g.route(g.inputs["a"], "r.weight", n_used=5)
        chosen = {"each.weight": ids, "of_groups.weight": g.group_ids(ids, 4)}
        return {w: g.mix(g.expert_matmul(g.inputs["a"], of, w), shares) for w, of in chosen.items()}

    for threads in (1, 3):
        for made in run_both(make, tensors, {"a": 20}, n=30, threads=threads):
            assert np.array_equal(made["of_groups.weight"], made["each.weight"])


def test_routes_of_ties_and_of_what_is_not_a_number():
    """Ids stay valid, distinct and as the definition has them."""
    router = np.zeros((6, 4), np.float32)
    router[4] = np.nan
    tensors = {"r.weight": Tensor(router), "c.weight": Tensor(np.array([0, 1, 1, 0, 9, -np.inf]))}
    marks = np.arange(6, dtype=np.float32).reshape(6, 1, 1) * np.ones((6, 1, 4), np.float32) / 4
    tensors["mark.weight"] = Tensor(marks)

    def make(g):
        a = g.inputs["a"]
        ids, shares = g.route(a, "r.weight", "c.weight", n_used=6, normalise=False)
        ones = g.activation(g.scale(g.add(a, a), 0.0), "sigmoid")
        return {"ids": g.merge_heads(g.expert_matmul(ones, ids, "mark.weight")), "shares": shares}

    made, _ = run_both(make, tensors, {"a": 4})
    assert np.array_equal(np.rint(made["ids"] * 2), np.tile([1, 2, 0, 3, 4, 5], (11, 1)))


def test_a_group_whose_worth_is_not_a_number_comes_last():
    """Its best experts are infinitely good and infinitely bad: their sum says nothing."""
    correction = np.array([np.inf, -np.inf, 0, 0, 5, 5, 1, 1])
    tensors = {
        "r.weight": Tensor(np.zeros((8, 4))),
        "c.weight": Tensor(correction),
        "mark.weight": Tensor(np.arange(8).reshape(8, 1, 1) * np.ones((8, 1, 4)) / 2),
    }

    def make(g):
        a = g.inputs["a"]
        ids, _ = g.route(a, "r.weight", "c.weight", n_used=3, n_groups=4, n_groups_used=2)
        ones = g.activation(g.scale(g.add(a, a), 0.0), "sigmoid")
        return {"ids": g.merge_heads(g.expert_matmul(ones, ids, "mark.weight"))}

    for found in run_both(make, tensors, {"a": 4}):
        assert np.array_equal(found["ids"], np.tile([4, 5, 6], (11, 1)))


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("widths", [(24, 16), (5, 7), (64, 80)], ids=str)
@pytest.mark.parametrize("kv_dtype", ["f32", "f16"])
def test_attention(name, widths, kv_dtype):
    tensors = attention_tensors(widths)
    program = attention_program(ATTENTIONS[name], tensors)
    rng = np.random.default_rng(8)
    cpu = Runner(CpuBackend(), program, Weights(tensors), threads=2, kv_dtype=kv_dtype)
    reference = Runner(ReferenceBackend("f32"), program, Weights(tensors), kv_dtype=kv_dtype)
    tolerance = 1e-5 if kv_dtype == "f32" else 1e-3  # keys on the edge of two halves
    if name == "cross":
        rows = rng.normal(size=(75, 32)).astype(np.float32)
        for r in (cpu, reference):
            with pytest.raises((BatchError, ValueError)):
                r.feed([1], seq=1)
            r.memory.rewind(1, 0)
            r.deliver(1, rows=rows)
    for n in (1, 3, 66, 70, 9):
        tokens = rng.integers(0, 20, n)
        place = 30 if n == 1 else None  # places below the first do not exist
        made, wanted = (r.feed(tokens, seq=1, place=place)["y"] for r in (cpu, reference))
        assert np.abs(made - wanted).max() < tolerance


@pytest.mark.parametrize("latent", [False, True])
def test_trunk(latent):
    program, weights = trunk(latent=latent)
    tokens = np.random.default_rng(2).integers(0, 40, 100)
    cpu = Runner(CpuBackend(), program, weights, threads=2).feed(tokens)
    wanted = Runner(ReferenceBackend("f64"), program, weights, kv_dtype="f64").feed(tokens)
    for name in wanted:
        assert np.abs(cpu[name] - wanted[name]).max() < 1e-4


def test_outputs_are_new_each_time():
    program, weights = trunk(layers=1)
    runner = Runner(CpuBackend(), program, weights)
    first = runner.feed([1, 2])
    kept = {name: rows.copy() for name, rows in first.items()}
    runner.feed([3, 4])
    assert all(np.array_equal(first[name], kept[name]) for name in kept)


def test_wrong_rows_are_errors():
    program, weights = trunk(layers=1)
    runner = Runner(CpuBackend(), program, weights, n_batch=4)
    runner.feed([1, 2])
    before = runner.memory.digest(0)
    for wrong in (
        {"tokens": [40]},
        {"tokens": [-1]},
        {"tokens": [1, 2], "outputs": [2]},
        {"tokens": [1, 2], "parent": [-1, 1]},
        {"tokens": [1] * 5},
        {"tokens": [-1], "embeddings": np.zeros((1, 63), np.float32)},
    ):
        with pytest.raises(BatchError):
            runner.feed(**wrong)
        runner.memory.rewind(0, 2)
    assert runner.memory.digest(0) == before
    assert runner.feed([])["logits"].shape == (0, 40)


def test_programs_that_cannot_be_lowered():
    program, weights = trunk(layers=1)
    with pytest.raises(BackendError, match="memory"):
        CpuBackend().plan(program, weights, n_batch=1, n_ctx=8, threads=1, stores=())
    with pytest.raises(BackendError, match="threads"):
        Runner(CpuBackend(), program, weights, threads=0)
    with pytest.raises(BackendError, match="type of memory"):
        CpuBackend().store([], 1, "q8")
