"""Values under several names and in several places: nobody reads what is made elsewhere."""

import numpy as np
import pytest
from harness.random_text import assert_same_bits
from programs import random_tensors

from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.cpu.arrangement import arrange
from mtpcore.backends.cpu.concat_targets import ConcatTarget, find_concat_targets
from mtpcore.backends.cpu.steps import Buffer, ExecutorStep, View
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.errors import BackendError
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.testing import Runner, Weights

pytestmark = pytest.mark.usefixtures("share_small_plans")

W, N_VOCAB = 32, 20
SHAPES = {
    "embd": (N_VOCAB, W),
    "square": (W, W),
    "join": (W, 2 * W),
    "head": (N_VOCAB, W),
    "router": (4, W),
    "stack": (4, 2 * W, W),
    "down": (4, W, 2 * W),
    "half": (4, W, W // 2),
    "heads": (2, 24, W // 2),
}


def norm(g, x):
    return g.rms_norm(x, None, 1e-5)


def split(g, x):
    """Norm a row's halves as heads, and all of it."""
    return norm(g, g.split_heads(x, 2)), norm(g, x)


def experts(g, x):
    """Route, multiply, mix."""
    ids, shares = g.route(x, "router.weight", n_used=2)
    up = g.expert_matmul(x, ids, "stack.weight")
    return ids, shares, up, g.mix(g.expert_matmul(up, ids, "down.weight"), shares)


def whole_slice(g, x):
    y = norm(g, x)
    return {"a": g.concat(y, g.slice(y, 0, W)), "b": g.scale(y, 2.0)}


def whole_slice_read_before(g, x):
    y = norm(g, x)
    part, after = g.slice(y, 0, W), g.scale(y, 2.0)
    return {"a": g.concat(x, part), "b": after}


def other_names(g, x):
    y, z = split(g, x)
    return {
        "a": g.concat(g.merge_heads(g.split_heads(z, 4)), g.merge_heads(y)),
        "b": g.scale(z, 3.0),
        "c": y,
    }


def one_head(g, x):
    y = g.split_heads(norm(g, x), 1)
    return {"a": g.concat(y, g.repeat(y, 1)), "b": g.merge_heads(y)}


def the_same_twice(g, x):
    y = norm(g, x)
    return {"a": g.concat(y, y, y)}


def in_two_concats(g, x):
    y = norm(g, x)
    return {"a": g.concat(y, x), "b": g.concat(x, y)}


def concat_of_concat(g, x):
    y, z = split(g, x)
    inner = g.concat(g.merge_heads(y), z)
    outer = g.concat(g.scale(x, 2.0), inner, g.concat(norm(g, x), g.slice(inner, 0, 2 * W)))
    return {"a": outer, "b": g.slice(outer, 5, 70)}


def slice_of_slice(g, x):
    y = norm(g, x)
    part = g.slice(g.slice(y, 0, W), 0, W)
    return {"a": g.concat(part, g.slice(part, 3, 9)), "b": y}


def output_and_operand(g, x):
    y = norm(g, x)
    return {"y": y, "again": y, "a": g.concat(x, y), "view": g.slice(y, 0, W)}


def input_as_output(g, x):
    slot = g.inputs["hidden"]
    return {"given": slot, "part": g.slice(slot, 0, W), "a": g.concat(slot, g.slice(slot, 0, 4))}


def heads_side_by_side(g, x):
    y = g.split_heads(g.matmul(x, "square.weight"), 4)  # of half a line
    wide = g.concat(g.scale(y, 2.0), g.activation(g.slice(y, 0, 5), "silu"), y)
    return {"a": wide, "b": g.merge_heads(g.slice(wide, 3, 20))}


def rows_of_one_head(g, x):
    """A part whose only reader knows it by another name."""
    y, z = (g.split_heads(g.matmul(x, "square.weight"), n) for n in (1, 2))
    return {
        "a": g.concat(
            x, g.merge_heads(norm(g, y)), g.merge_heads(norm(g, z)), g.merge_heads(g.slice(y, 0, 9))
        )
    }


def shares_side_by_side(g, x):
    _, shares, _, mixed = experts(g, x)
    return {"a": g.concat(mixed, shares), "b": shares}


def shares_alone(g, x):
    _, shares = g.route(x, "router.weight", n_used=3)
    return {"a": g.concat(norm(g, x), shares)}


def ranks_of_a_slice(g, x):
    """Each rank's row is a head of a part of a row: heads follow each other, rows do not."""
    ids, _ = g.route(x, "router.weight", n_used=2)
    wide = g.concat(norm(g, x), x)
    return {"a": g.expert_matmul(g.split_heads(g.slice(wide, 4, 4 + W), 2), ids, "half.weight")}


def ranks_side_by_side(g, x):
    """Experts write rows that follow each other, a part of a concat has others between."""
    ids, _ = g.route(x, "router.weight", n_used=2)
    y = g.expert_matmul(x, ids, "stack.weight")
    z = g.head_matmul(g.split_heads(x, 2), "heads.weight")
    one, _ = g.route(x, "router.weight", n_used=1)
    rows = g.merge_heads(g.expert_matmul(x, one, "stack.weight"))
    return {"a": g.concat(y, z, g.split_heads(x, 2)), "b": g.concat(x, rows)}


def experts_of_output_rows(g, x):
    kept = norm(g, g.output_rows(x))
    _, shares, up, mixed = experts(g, kept)
    return {"up": up, "a": g.add(kept, mixed), "shares": shares}


def heads_of_output_rows(g, x):
    return {
        "a": g.head_matmul(g.split_heads(g.output_rows(x), 2), "heads.weight"),
        "b": g.head_matmul(g.split_heads(x, 2), "heads.weight"),
    }


GRAPHS = [
    whole_slice, whole_slice_read_before, other_names, one_head, the_same_twice, in_two_concats,
    concat_of_concat, slice_of_slice, output_and_operand, input_as_output, heads_side_by_side,
    rows_of_one_head, shares_side_by_side, shares_alone, ranks_of_a_slice, ranks_side_by_side,
    experts_of_output_rows, heads_of_output_rows,
]  # fmt: skip


def program_of(graph):
    tensors = random_tensors(0, **SHAPES)
    g = GraphBuilder(graph.__name__, tensors, slots={"hidden": W})
    x = g.matmul(
        g.concat(g.embed(g.inputs.tokens, "embd.weight"), g.inputs["hidden"]), "join.weight"
    )
    rows = graph(g, x)
    logits = g.matmul(g.output_rows(x), "head.weight")
    return g.finish(Outputs(logits, **rows)), tensors


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.__name__)
@pytest.mark.parametrize("threads", [1, 3])
def test_all_readers_see_the_value(graph, threads):
    program, tensors = program_of(graph)
    rng = np.random.default_rng(1)
    runners = [
        Runner(backend, program, Weights(tensors), threads=threads, n_batch=24)
        for backend in (CpuBackend(), ReferenceBackend(quantise_activations=True))
    ]
    for n in (3, 19):
        given = {
            "tokens": rng.integers(0, N_VOCAB, n),
            "outputs": np.flatnonzero(rng.random(n) < 0.4),
            "hidden": rng.normal(size=(n, W)).astype(np.float32),
        }
        made, wanted = (runner.feed(**given) for runner in runners)
        assert_same_bits(made, wanted, f"{n} rows")


def names_of(graph):
    """Return which operations of a graph make their values inside another one."""
    program, _ = program_of(graph)
    made_by = {value: node.op for node in program.nodes for value in node.outputs}
    return sorted(made_by[value] for value in find_concat_targets(program) if value > 5)


def test_only_what_is_read_once_is_made_in_its_place():
    assert names_of(whole_slice) == names_of(other_names) == names_of(the_same_twice) == []
    assert names_of(in_two_concats) == names_of(output_and_operand) == []
    assert names_of(concat_of_concat) == ["concat", "rms_norm", "rms_norm", "scale"]
    assert names_of(rows_of_one_head) == ["rms_norm"]
    assert names_of(shares_alone) == ["rms_norm", "route"]
    program, _ = program_of(in_two_concats)
    embedded, joined = program.nodes[0].outputs[0], program.nodes[1].outputs[0]
    assert find_concat_targets(program) == {embedded: ConcatTarget(joined, 0)}


def step(kind, reads, writes):
    ins, outs = ([View(buffer, 1, 0, 4, 4, 4) for buffer in some] for some in (reads, writes))
    return ExecutorStep(kind, 0, ins, outs)


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        ([step("scale", [0], [2]), step("copy", [1], [3])], "step 1, copy"),
        ([step("scale", [0], [2]), step("add", [2, 3], [3])], "add"),
        ([step("scale", [3], [2]), step("copy", [2], [3])], "scale, copy"),
    ],
)
def test_steps_that_cannot_run_are_no_plan(steps, named):
    """What nobody makes, and what needs itself, by a fault of the lowering: never wrong numbers."""
    buffers = [Buffer(16, 16, external=i == 0) for i in range(4)]
    with pytest.raises(BackendError) as caught:
        arrange(steps, buffers)
    assert caught.value.got == named
