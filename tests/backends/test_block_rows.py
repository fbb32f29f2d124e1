"""Operations over the rows of a block: their formulas, and that blocks do not see each other."""

import numpy as np
import pytest
from programs import Tensor, random_tensors

from mtpcore._ext._plan import ORDERS, use_order
from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.cpu.backend import CpuPlan
from mtpcore.backends.cpu.lower import Lowering
from mtpcore.backends.cpu.weights import CpuWeights
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.errors import BackendError, BatchError
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.graph.program import Weight
from mtpcore.runtime.parts import run_parts
from mtpcore.testing import Runner, Weights

pytestmark = pytest.mark.usefixtures("share_small_plans")

SIZE, WIDTH = 5, 37
BACKENDS = {
    "cpu": (CpuBackend(), 2e-6),
    "f32": (ReferenceBackend(), 2e-6),
    "f64": (ReferenceBackend("f64"), 1e-14),
}
RNG = np.random.default_rng(4)
MIXER = RNG.normal(0, 1, (SIZE, SIZE, WIDTH)).astype(np.float32)
SEQ = np.array([0, 0, 2, 0, 1, 2, 0, 0, 1, 0, 2, 0, 0, 0, 0], np.int32)
"""Two whole blocks of sequence 0, and shorter ones; the rows of the others lie between."""
X = RNG.normal(0, 1, (len(SEQ), WIDTH)).astype(np.float32)


CANDIDATES = random_tensors(8, table=(WIDTH, 8), square=(8, 8), bias=(2, 2 * SIZE - 1))


def convolved(g, x):
    """Convolve with one of the mixer's matrices, to which a row adds a value for each tap."""
    return g.block_conv(x, g.slice(x, 0, SIZE), "mixer.weight", size=SIZE, part=1)


def block_program(mixer=MIXER):
    tensors = {"mixer.weight": Tensor(mixer)}
    g = GraphBuilder("blocks", tensors, slots={"x": WIDTH})
    x = g.inputs["x"]
    mean, mixed = g.block_mean(x, SIZE), g.block_mix(x, "mixer.weight")
    made = Outputs(mean=mean, mixed=mixed, convolved=convolved(g, x), best=g.keep_best(x, 3))
    return g.finish(made), Weights(tensors)


def candidates(g, x):
    """Of the three best columns of each row a vector of eight; attention has two heads."""
    ids, shares = g.find_best(x, 3)
    y = g.embed_ids(ids, "table.weight")
    of_blocks = {"size": SIZE, "first": 1}
    attended = g.block_attention(y, y, y, "bias.weight", scale=0.5, **of_blocks)
    start = g.rank_matmul(attended, "square.weight")
    start = g.slice(g.merge_heads(start), 0, 8)
    walk = g.block_walk(ids, start, attended, y, width=WIDTH, **of_blocks)
    return {"attended": attended, "walk": walk, "shares": shares}


def walk_alone(g, x):
    """Walk over rows of one candidate, whose vectors are its row."""
    ids, _ = g.find_best(x, 1)
    y = g.split_heads(x, 1)
    return g.block_walk(ids, x, y, y, size=SIZE, width=WIDTH)


def candidate_program():
    g = GraphBuilder("candidates", CANDIDATES, slots={"x": WIDTH})
    return g.finish(Outputs(**candidates(g, g.inputs["x"]))), Weights(CANDIDATES)


def rows_of(seq, x):
    places = np.array([(seq[:t] == s).sum() for t, s in enumerate(seq)], np.int32)
    return CheckedBatch(
        tokens=np.zeros(len(seq), np.int32),
        positions=places[:, None],
        seq=seq,
        place=places,
        outputs=np.zeros(0, np.int32),
        slots={"x": x},
    )


def plan_on(backend, n_batch=15, threads=1, mixer=MIXER, made=None):
    program, weights = made or block_program(mixer)
    return backend.plan(program, weights, n_batch=n_batch, n_ctx=64, threads=threads, stores=[])


def blocks():
    """Yield the rows of each block."""
    for s in range(3):
        rows = np.flatnonzero(s == SEQ)
        yield from (rows[at : at + SIZE] for at in range(0, len(rows), SIZE))


@pytest.mark.parametrize("name", BACKENDS)
def test_each_block_by_its_formula(name):
    """As published: x + einsum("ckj,njc->nkc", tril(L), x), without the x."""
    backend, bound = BACKENDS[name]
    made = plan_on(backend).run(rows_of(SEQ, X), None)
    lower = MIXER.transpose(2, 0, 1) * np.tril(np.ones((SIZE, SIZE)))
    assert sorted(len(block) for block in blocks()) == [2, 3, 5, 5]
    for block in blocks():
        x, n = X[block].astype(np.float64), len(block)
        wanted = np.einsum("ckj,jc->kc", lower[:, :n, :n], x)
        np.testing.assert_allclose(made["mixed"][block], wanted, rtol=0, atol=8 * bound)
        np.testing.assert_allclose(
            made["mean"][block], np.tile(x.mean(0), (n, 1)), rtol=0, atol=bound
        )
        wanted = [
            sum((MIXER[1, j] + x[i, j]) * x[i - j] for j in range(min(i + 1, SIZE)))
            for i in range(n)
        ]
        np.testing.assert_allclose(made["convolved"][block], wanted, rtol=0, atol=16 * bound)


@pytest.mark.parametrize("name", BACKENDS)
def test_candidates_by_their_formulas(name):
    backend, bound = BACKENDS[name]
    made = plan_on(backend, made=candidate_program()).run(rows_of(SEQ, X), None)
    table, square, bias = (
        np.asarray(CANDIDATES[f"{n}.weight"].array(), np.float64)
        for n in ("table", "square", "bias")
    )
    ids = np.argsort(-X, axis=1, kind="stable")[:, :3]
    shares = np.exp(X.astype(np.float64))
    shares /= shares.sum(1, keepdims=True)
    shares = np.take_along_axis(shares, ids, axis=1)
    wanted = np.stack([np.log(shares), shares], axis=2)
    np.testing.assert_allclose(made["shares"], wanted, rtol=0, atol=10 * bound)
    for block in blocks():
        y, n = table[ids[block]], len(block)
        flat, row = y[1:].reshape(-1, 2, 4), np.repeat(np.arange(1, n), 3)
        for i, rank, head in np.ndindex(n, 3, 2):
            scores = flat[:, head] @ y[i, rank].reshape(2, 4)[head] / 2
            e = np.exp(scores + bias[head, i - row + SIZE - 1])
            wanted = e @ flat[:, head] / e.sum()
            found = made["attended"][block[i], rank].reshape(2, 4)[head]
            np.testing.assert_allclose(found, wanted, rtol=0, atol=20 * bound)
        attended = made["attended"][block].astype(np.float64)
        before = (attended[1] @ square.T).reshape(-1)[:8]
        assert (made["walk"][block[0]] == -np.inf).all()
        for i in range(1, n):
            scores = y[i] @ before
            wanted = np.full(WIDTH, -np.inf)
            wanted[ids[block[i]]] = scores
            np.testing.assert_allclose(made["walk"][block[i]], wanted, rtol=0, atol=30 * bound)
            before = attended[i, scores.argmax()]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("make", [block_program, candidate_program])
def test_blocks_do_not_see_each_other(make, threads, order):
    """Bit for bit, whatever lies beside them, what is not a number included."""
    use_order(order)
    plan = plan_on(CpuBackend(), threads=threads, made=make())
    beside = X.copy()
    for block in list(blocks())[1:]:
        beside[block] = np.nan
    first = next(iter(blocks()))
    alone = plan.run(rows_of(SEQ[first], X[first]), None)
    for x in (X, beside):
        together = plan.run(rows_of(SEQ, x), None)
        for name, rows in alone.items():
            assert together[name][first].tobytes() == rows.tobytes()


@pytest.mark.parametrize("name", ["cpu", "f32"])
def test_a_row_is_mixed_with_none_after_it(name):
    """Nor does what is above the diagonal matter."""
    backend = BACKENDS[name][0]
    upper = np.where(np.tril(np.ones((SIZE, SIZE)))[:, :, None] > 0, MIXER, np.float32(np.nan))
    x = X[:SIZE].copy()
    x[3:] = np.inf
    seq = np.zeros(SIZE, np.int32)
    made = plan_on(backend, mixer=upper).run(rows_of(seq, x), None)["mixed"]
    wanted = plan_on(backend).run(rows_of(seq, X[:SIZE]), None)["mixed"]
    assert made[:3].tobytes() == wanted[:3].tobytes()


def test_programs_say_that_blocks_stay_together():
    tensors = {"mixer.weight": Tensor(MIXER), **CANDIDATES}
    for make, whole in (
        (lambda g, x: g.block_mean(x, 4), (True, True)),
        (lambda g, x: g.block_mix(x, "mixer.weight"), (False, True)),
        (lambda g, x: convolved(g, x), (False, True)),
        (lambda g, x: candidates(g, x)["walk"], (True, True)),
        (lambda g, x: walk_alone(g, x), (False, True)),
        (lambda g, x: g.scale(x, 2.0), (False, False)),
    ):
        g = GraphBuilder("blocks", tensors, slots={"x": WIDTH})
        program = g.finish(Outputs(y=make(g, g.inputs["x"])))
        assert (program.sees_ahead, program.is_run_whole) == whole


def test_batches_are_cut_between_sequences():
    """Rows that were cut from their block would be another block's."""
    seq = np.repeat(np.arange(3, dtype=np.int32), 5)
    plan, batch = plan_on(CpuBackend(), n_batch=6), rows_of(seq, X)
    ranges = {s: (0, 5) for s in range(3)}
    made = run_parts(plan, None, 6, batch, ranges)
    wanted = plan_on(CpuBackend()).run(batch, None)
    assert all(made[name].tobytes() == wanted[name].tobytes() for name in wanted)
    with pytest.raises(BatchError, match="run in one piece"):
        run_parts(plan, None, 4, batch, ranges)


def replaced(i, **changed):
    """Change what an input says of itself."""

    def change(step):
        step.inputs[i] = step.inputs[i]._replace(**changed)

    return change


def pack_rows(n_rows, n_columns):
    matrix = Tensor(np.zeros((n_rows, n_columns), np.float32))
    weight = Weight("rows", "rows", matrix.shape)
    return CpuWeights(Weights({"rows": matrix})).matrix(weight)


def set_size(*sizes):
    return lambda step: setattr(step, "ints", [*sizes])


MISFITS = {
    "mean, no rows": ("block_mean", set_size(0)),
    "mean, too many rows": ("block_mean", set_size(1025)),
    "mean, outputs": ("block_mean", lambda s: setattr(s, "axis", 1)),
    "mean, heads": (
        "block_mean",
        lambda s: setattr(s, "inputs", [s.inputs[0]._replace(n_heads=2, width=WIDTH // 2)]),
    ),
    "mean, width": (
        "block_mean",
        lambda s: setattr(s, "inputs", [s.inputs[0]._replace(width=WIDTH - 1)]),
    ),
    "mix, size": ("block_mix", set_size(SIZE + 1)),
    "mix, no rows": ("block_mix", set_size(0)),
    "mix, far too many rows": ("block_mix", set_size(1 << 40)),
    "mix, no weights": ("block_mix", lambda s: setattr(s, "weights", [None])),
    "mix, fewer weights": (
        "block_mix",
        lambda s: setattr(s, "weights", [s.weights[0][:-1].copy()]),
    ),
    "mix, outputs": ("block_mix", lambda s: setattr(s, "axis", 1)),
    "conv, no rows": ("block_conv", set_size(0, SIZE, 1)),
    "conv, too many rows": ("block_conv", set_size(1025, SIZE, 1)),
    "conv, no taps": ("block_conv", set_size(SIZE, 0, 1)),
    "conv, too many taps": ("block_conv", set_size(SIZE, 33, 1)),
    "conv, more taps than changes": ("block_conv", set_size(SIZE, SIZE + 1, 1)),
    "conv, no groups": ("block_conv", set_size(SIZE, SIZE, 0)),
    "conv, uneven groups": ("block_conv", set_size(SIZE, SIZE, 2)),
    "conv, no weights": ("block_conv", lambda s: setattr(s, "weights", [None])),
    "conv, fewer weights": (
        "block_conv",
        lambda s: setattr(s, "weights", [s.weights[0][:-1].copy()]),
    ),
    "conv, no changes": ("block_conv", lambda s: setattr(s, "inputs", s.inputs[:1])),
    "conv, outputs": ("block_conv", lambda s: setattr(s, "axis", 1)),
    "best, none": ("keep_best", set_size(0)),
    "best, too many": ("keep_best", set_size(257)),
    "best, heads": (
        "keep_best",
        lambda s: setattr(s, "inputs", [s.inputs[0]._replace(n_heads=2, width=WIDTH // 2)]),
    ),
    "found, none": ("find_best", set_size(0)),
    "found, more than are kept": ("find_best", set_size(4)),
    "found, no shares": ("find_best", lambda s: setattr(s, "outputs", s.outputs[:1])),
    "ids, none's": ("embed_ids", replaced(0, buffer=0)),
    "ids, more than were found": ("embed_ids", replaced(0, width=4)),
    "ids, a smaller table": (
        "embed_ids",
        lambda s: setattr(s, "matrices", [pack_rows(WIDTH - 1, 8)]),
    ),
    "ids, another width": ("embed_ids", lambda s: setattr(s, "matrices", [pack_rows(WIDTH, 7)])),
    "attention, no rows": ("block_attention", set_size(0, 2, 0)),
    "attention, more distances": ("block_attention", set_size(SIZE + 1, 2, 1)),
    "attention, too many": ("block_attention", set_size(1025, 2, 1)),
    "attention, no heads": ("block_attention", set_size(SIZE, 0, 1)),
    "attention, uneven heads": ("block_attention", set_size(SIZE, 3, 1)),
    "attention, first": ("block_attention", set_size(SIZE, 2, SIZE)),
    "attention, before the first": ("block_attention", set_size(SIZE, 2, -1)),
    "attention, no bias": ("block_attention", lambda s: setattr(s, "weights", [None])),
    "attention, fewer keys": ("block_attention", replaced(1, n_heads=2)),
    "attention, no values": ("block_attention", lambda s: setattr(s, "inputs", s.inputs[:2])),
    "attention, outputs": ("block_attention", lambda s: setattr(s, "axis", 1)),
    "walk, no rows": ("block_walk", set_size(0, 0)),
    "walk, first": ("block_walk", set_size(SIZE, SIZE)),
    "walk, ids of nobody": ("block_walk", replaced(0, buffer=0)),
    "walk, fewer ids": ("block_walk", replaced(0, width=2)),
    "walk, a shorter start": ("block_walk", replaced(1, width=7)),
    "walk, fewer vectors": ("block_walk", replaced(3, n_heads=2)),
    "walk, outputs": ("block_walk", lambda s: setattr(s, "axis", 1)),
    "walk, fewer columns": (
        "block_walk",
        lambda s: setattr(s, "outputs", [s.outputs[0]._replace(width=WIDTH - 1)]),
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_no_plan_is_made(name):
    kind, change = MISFITS[name]
    made = [block_program(), candidate_program()]
    program, source = next(one for one in made if kind in {node.op for node in one[0].nodes})
    lowered = Lowering(program, CpuWeights(source), [], n_batch=4, n_ctx=64)
    change(next(step for step in lowered.steps if step.kind == kind))
    with pytest.raises(BackendError):
        CpuPlan(lowered, threads=1)


@pytest.mark.parametrize("make", [block_program, candidate_program])
def test_what_fits_is_made(make):
    program, source = make()
    CpuPlan(Lowering(program, CpuWeights(source), [], n_batch=4, n_ctx=64), threads=2)


def test_a_runner_without_memory_mixes_what_it_is_fed():
    program, weights = block_program()
    found = [Runner(b, program, weights).feed([0] * 7, x=X[:7]) for b, _ in BACKENDS.values()]
    for made in found[1:]:
        np.testing.assert_allclose(made["mixed"], found[0]["mixed"], rtol=0, atol=2e-5)
