"""How the CPU backend shares work: few barriers, each of them needed, and always the same bits."""

from itertools import pairwise

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from harness.generated import random_matrix
from programs import N_VOCAB, attention_shapes, random_tensors, trunk

import mtpcore
from mtpcore._ext._plan import BARRIER_IF_FEW, BARRIER_IF_MANY, ORDERS, use_order
from mtpcore.backends.cpu import CpuBackend, backend
from mtpcore.backends.cpu import sharing as shares
from mtpcore.backends.cpu.steps import Sharing
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.testing import Runner, Weights

pytestmark = pytest.mark.usefixtures("share_small_plans")

WIDTH, N_HEADS, HEAD, N_FF = 256, 8, 64, 512
TEXT = np.random.default_rng(0).integers(0, N_VOCAB, 40)


def dense(layers, *, n_key_heads=4, kind=Type.Q8_0, norms=False):
    """Return a trunk of a shape like those of real models: whole blocks in every head and half."""
    shapes = {"embd": (N_VOCAB, WIDTH), "norm": (WIDTH,), "head": (N_VOCAB, WIDTH)}
    for i in range(layers):
        shapes |= attention_shapes(i, WIDTH, N_HEADS, n_key_heads, HEAD) | {
            f"{i}.q_norm": (HEAD,),
            f"{i}.o": (WIDTH, N_HEADS * HEAD),
            f"{i}.ff_norm": (WIDTH,),
            f"{i}.gate": (N_FF, WIDTH),
            f"{i}.up": (N_FF, WIDTH),
            f"{i}.down": (WIDTH, N_FF),
        }
    tensors = random_tensors(0, **shapes)
    rng = np.random.default_rng(0)
    for tensor in tensors.values():
        if len(tensor.shape) > 1:
            tensor.type, tensor._raw = int(kind), random_matrix(rng, kind.name, *tensor.shape)
    g = GraphBuilder("dense", tensors)
    frequencies = [10000.0 ** (-i / 8) for i in range(8)]
    x = g.embed(g.inputs.tokens, "embd.weight", embeddings=True)
    for i in range(layers):
        a = g.rms_norm(x, f"{i}.norm.weight", 1e-5)
        q = g.split_heads(g.matmul(a, f"{i}.q.weight"), N_HEADS)
        k = g.split_heads(g.matmul(a, f"{i}.k.weight"), n_key_heads)
        v = g.split_heads(g.matmul(a, f"{i}.v.weight"), n_key_heads)
        if norms:
            q, k = (g.rms_norm(y, f"{i}.q_norm.weight", 1e-5) for y in (q, k))
        q, k = (g.rope(y, g.inputs.positions, frequencies) for y in (q, k))
        y = g.attention(q, k, v, layer=i, scale=HEAD**-0.5)
        x = g.add(x, g.matmul(g.merge_heads(y), f"{i}.o.weight"))
        f = g.rms_norm(x, f"{i}.ff_norm.weight", 1e-5)
        f = g.gated(g.matmul(f, f"{i}.gate.weight"), g.matmul(f, f"{i}.up.weight"))
        x = g.add(x, g.matmul(f, f"{i}.down.weight"))
    hidden = g.rms_norm(x, "norm.weight", 1e-5)
    logits = g.matmul(g.output_rows(hidden), "head.weight")
    return g.finish(Outputs(logits, hidden=hidden)), Weights(tensors)


PROGRAMS = {
    "dense": dense(2),
    "dense with norms": dense(2, norms=True),
    "dense q4_k": dense(2, kind=Type.Q4_K),
    "dense f16": dense(1, kind=Type.F16),
    "one key head": dense(1, n_key_heads=1),
    "experts": trunk(),
    "experts q8_0": trunk(kind=Type.Q8_0),
    "latent": trunk(latent=True),
}


def runner(name, threads):
    program, weights = PROGRAMS[name]
    return Runner(CpuBackend(), program, weights, threads=threads, n_batch=40)


def fed(runner, lengths):
    """Return the outputs of a text fed in parts."""
    found, begin = [], 0
    for n in lengths:
        found.append(runner.feed(TEXT[begin : begin + n]))
        begin += n
    return {key: np.concatenate([part[key] for part in found]) for key in found[0]}


def same(a, b):
    return all(np.array_equal(a[key], b[key]) for key in a)


LENGTHS = {"few": [1, 3, 8], "many": [9, 31]}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("n_rows", LENGTHS)
def test_bits_do_not_depend_on_the_order_of_threads(name, n_rows):
    """Whatever thread comes first between two barriers."""
    alone = fed(runner(name, 1), LENGTHS[n_rows])
    for threads in (2, 3, 5):
        for order in ORDERS:
            use_order(order)
            assert same(fed(runner(name, threads), LENGTHS[n_rows]), alone)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name.startswith("dense")])
@pytest.mark.parametrize("n_rows", LENGTHS)
def test_every_barrier_is_needed(name, n_rows, monkeypatch):
    """Without any one inside the layers threads that take turns get it wrong, in one order."""
    alone = fed(runner(name, 1), LENGTHS[n_rows])
    barrier = {"few": BARRIER_IF_FEW, "many": BARRIER_IF_MANY}[n_rows]
    steps = runner(name, 2).plan.steps
    needed = [i for i, step in enumerate(steps) if step.barrier & barrier and not step.axis]
    assert len(needed) >= 4
    arrange = backend.arrange
    for missing in needed:

        def without(steps, buffers, missing=missing):
            arranged = arrange(steps, buffers)
            arranged[missing].barrier &= ~barrier
            return arranged

        monkeypatch.setattr(backend, "arrange", without)
        found = []
        for order in ("first to last", "last to first"):
            use_order(order)
            found.append(same(fed(runner(name, 2), LENGTHS[n_rows]), alone))
        assert not all(found)


def barriers_of_layer(*, threads=2, **options):
    """Count the barriers that one more layer brings, for few rows and for many."""
    found = []
    for layers in (2, 3):
        program, weights = dense(layers, **options)
        steps = Runner(CpuBackend(), program, weights, threads=threads).plan.steps
        found.append([sum(bool(s.barrier & b) for s in steps) for b in (1, 2)])
    return [more - less for less, more in zip(*found, strict=True)]


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_K, Type.F16])
@pytest.mark.parametrize("norms", [False, True])
def test_dense_layers_have_four_barriers(threads, kind, norms):
    """Before q, k and v; before the output matrix; before gate and up; before down."""
    few, many = barriers_of_layer(threads=threads, kind=kind, norms=norms)
    assert few == 4
    assert many == 6  # rows are shared out, then: norms and what follows come before a barrier


def test_layers_with_fewer_key_heads_than_threads_have_more():
    """Attention is spread by rows and query heads: a barrier before it, and one after."""
    assert barriers_of_layer(threads=2, n_key_heads=1)[0] == 6


@pytest.mark.parametrize(
    ("name", "layers", "after"), [("demo", [3, 5, 5, 5], 1), ("demo:deepseek", [7, 9, 9], 1)]
)
def test_barriers_of_layers_with_experts(name, layers, after):
    """Experts: before q, k and v; the output matrix; the router; gate and up; down.

    Latent attention has four more: before the second product of queries, the heads' product with
    keys, attention, and the heads' product with values. The first layer of each model is dense, and
    what comes before its first product each thread makes for itself; one barrier is the logits'.
    """
    context = mtpcore.Context(mtpcore.load_model(name), 64, threads=2)
    steps = context.runner.plan.steps
    adds = [i for i, step in enumerate(steps) if step.kind == "add"]
    # A layer ends with the last sum before the next norm.
    ends = [i for i in adds if steps[i + 1].kind == "rms_norm"][1::2]
    cuts = [0, *(i + 1 for i in ends), len(steps)]
    found = [sum(bool(s.barrier & BARRIER_IF_FEW) for s in steps[a:b]) for a, b in pairwise(cuts)]
    assert found == [*layers, after]


def test_factors_of_columns_stay_with_them():
    """Of rows and of heads, whose columns are cut in as many parts as those of a row."""
    tensors = random_tensors(3, w=(96, 32), factor=(96,), factor_of_heads=(48,))
    found, wanted = [], []
    for threads, to in ((1, wanted), (2, found), (3, found)):
        g = GraphBuilder("test", tensors, slots={"x": 32})
        y = g.matmul(g.inputs["x"], "w.weight")
        by_value = g.scale_by(y, "factor.weight")
        by_head = g.scale_by(
            g.split_heads(g.activation(by_value, "softplus"), 2), "factor_of_heads.weight"
        )
        program = g.finish(Outputs(y=g.merge_heads(by_head)))
        made = Runner(CpuBackend(), program, Weights(tensors), threads=threads, n_batch=9)
        shares_of = [step.sharing for step in made.plan.steps if step.kind == "scale_by"]
        rows = np.random.default_rng(4).normal(size=(9, 32)).astype(np.float32)
        to += [(made.feed(np.zeros(9, np.int32), x=rows)["y"], shares_of)]
    assert all(np.array_equal(rows, wanted[0][0]) for rows, _ in found)
    assert all(shares_of[0] == Sharing.COLUMNS for _, shares_of in found)


def test_norms_side_by_side_are_made_in_place():
    """The demo's head joins the norms of a token and a hidden row: nothing is copied for it."""
    cross = mtpcore.link(mtpcore.Context(mtpcore.load_model("demo"), 64, threads=2))
    drafter = cross.drafters["draft"].runner
    assert "concat" in [node.op for node in drafter.program.nodes]
    assert "copy" not in [step.kind for step in drafter.plan.steps]


def test_parts_are_given_up_where_threads_would_wait_longer_than_at_a_barrier(monkeypatch):
    """Four key heads on three threads: two heads are one thread's."""

    def attention(threads):
        steps = runner("dense", threads).plan.steps
        return {step.sharing for step in steps if step.kind == "attention"}

    assert attention(2) == {Sharing.COLUMNS}
    assert attention(3) == {Sharing.COLUMNS}  # of small matrices
    monkeypatch.setattr(shares, "BARRIER_NS", 0.0)
    assert attention(2) == {Sharing.COLUMNS}
    assert attention(3) == {Sharing.SPREAD}
