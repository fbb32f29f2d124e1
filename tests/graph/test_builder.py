"""The grammar: what does not fit is refused while building, by an error that names it."""

import pickle

import msgspec
import numpy as np
import pytest

from mtpcore.declarations.spec import Tap, first_of
from mtpcore.errors import GraphError
from mtpcore.gguf.axes import fit_axes
from mtpcore.graph import GraphBuilder, GraphType, MemoryLayer, Outputs
from mtpcore.graph.inference import check
from mtpcore.graph.ops import MASKS, MAX_BEST, MAX_BLOCK, MAX_CANDIDATES, OPS
from mtpcore.graph.program import ConvLayer

W, V = 12, 20
TENSORS = {
    "embd.weight": np.zeros((V, W)),
    "square.weight": np.zeros((W, W)),
    "square.bias": np.zeros(W),
    "narrow.weight": np.zeros((W, W - 1)),
    "vector.weight": np.zeros(W - 1),
    "order.weight": np.zeros(W),
    "two.weight": np.zeros(2),
    "three.weight": np.zeros(3),
    "biases.weight": np.zeros((4, 3)),
    "odd.weight": np.zeros((W + 1, W)),
    "stack.weight": np.zeros((3, 7, W)),
    "short.weight": np.zeros((2, 7, W)),
    "long.weight": np.zeros((4, 7, W)),
    "router.weight": np.zeros((3, W)),
    "mixer.weight": np.zeros((5, 5, W)),
    "tall.weight": np.zeros((5, 6, W)),
    "kernels.weight": np.zeros((2, 3, W)),
    "distances.weight": np.zeros((2, 5)),
    "table of four.weight": np.zeros((W, 4)),
    "blk.4.own.weight": np.zeros((W, W)),
}


def builder(**options):
    g = GraphBuilder("toy", TENSORS, **options)
    return g, g.embed(g.inputs.tokens, "embd.weight")


def attend(g, x, q, window=5):
    """Attend to what three heads of keys stored, in a window of five."""
    stored = heads(g, x)
    g.attention(stored, stored, stored, layer=0, scale=1.0, window=5)
    return g.attend(q, layer=0, scale=1.0, window=window)


def clusters(g, rows, ordering, matrix="square.weight"):
    """Multiply rows by the outputs of one of three clusters."""
    x = g.embed(g.inputs.tokens, "embd.weight")
    ids, _ = g.route(x, "router.weight", n_used=1)
    return g.cluster_matmul(rows, ids, matrix, ordering)


def scored(g, x, **options):
    """Attend with three heads of keys."""
    k = heads(g, x)
    return g.attention(k, k, k, layer=0, scale=1.0, **options)


def sharpened(g, x, **changed):
    """Multiply rows by a factor of their positions."""
    return g.scale_by_position(x, g.inputs.positions, **({"beta": 0.1, "n": 8} | changed))


def chosen(g, x, factors):
    """Multiply the rows of two experts by factors of theirs."""
    ids, _ = g.route(x, "router.weight", n_used=2)
    return g.scale_chosen(g.split_heads(x, 2), ids, factors)


def added(g, y, x, n_used=2, n=3):
    """Add what given ids chose, with shares of a route."""
    ids, (_, shares) = g.given_ids(g.inputs.codes(n_used), n), routed(g, n_used)
    return g.add_node("add_chosen", [y, x, ids, shares], n=3)


def routed(g, n_used):
    x = g.embed(g.inputs.tokens, "embd.weight")
    return g.route(x, "router.weight", n_used=n_used)


def convolved(g, x, kernels="kernels.weight", n=6, size=4, part=0):
    """Convolve blocks by one of two kernels of three taps, changed by two groups of channels."""
    changes = g.slice(g.embed(g.inputs.tokens, "embd.weight"), 0, n)
    return g.block_conv(x, changes, kernels, size=size, part=part)


def walk(g, x, n=3, start=4, width=12, coming=3, **of_blocks):
    """Walk over the best three columns of rows, each with a vector of four."""
    ids, _ = g.find_best(x, n)
    of_blocks = {"size": 4, "width": width, **of_blocks}
    return g.block_walk(ids, g.slice(x, 0, start), heads(g, x), heads(g, x, coming), **of_blocks)


def attended(g, q, k=None, bias="distances.weight", **of_blocks):
    """Let candidates of blocks of three rows attend to each other, with two heads."""
    k = q if k is None else k
    return g.block_attention(q, k, k, bias, scale=1.0, **{"size": 3, **of_blocks})


def heads(g, x, n=3):
    return g.split_heads(x, n)


def delta(g, x, **others):
    """Return a delta rule of three heads, with one of its inputs replaced."""
    inputs = {name: heads(g, x) for name in "qkv"}
    inputs |= {"decay": g.slice(x, 0, 3), "beta": g.slice(x, 0, 3)}
    return g.delta_rule(**(inputs | {"layer": 1} | others))


WRONG = {
    "embed, rows": lambda g, x: g.embed(x, "embd.weight"),
    "embed, positions": lambda g, x: g.embed(g.inputs.positions, "embd.weight"),
    "embed_positions, tokens": lambda g, x: g.embed_positions(g.inputs.tokens, "embd.weight"),
    "embed_positions, stack": lambda g, x: g.embed_positions(g.inputs.positions, "stack.weight"),
    "add, tokens": lambda g, x: g.add(g.inputs.tokens, g.inputs.tokens),
    "concat, positions": lambda g, x: g.concat(x, g.inputs.positions),
    "rope, rows": lambda g, x: g.rope(heads(g, x), x, [1.0]),
    "rope, output rows": lambda g, x: g.rope(heads(g, g.output_rows(x)), g.inputs.positions, [1.0]),
    "attention, output rows": lambda g, x: g.attention(
        heads(g, g.output_rows(x)), *[heads(g, x)] * 2, layer=0, scale=1
    ),
    "attention, keys of output rows": lambda g, x: g.attention(
        heads(g, x), *[heads(g, g.output_rows(x))] * 2, layer=0, scale=1
    ),
    "expert_matmul, weights": lambda g, x: g.expert_matmul(
        x, g.route(x, "router.weight", n_used=1)[1], "stack.weight"
    ),
    "matmul, width": lambda g, x: g.matmul(x, "narrow.weight"),
    "matmul, stack": lambda g, x: g.matmul(x, "stack.weight"),
    "matmul, bias": lambda g, x: g.matmul(x, "square.weight", "vector.weight"),
    "matmul, heads": lambda g, x: g.matmul(heads(g, x), "square.weight"),
    "rms_norm": lambda g, x: g.rms_norm(x, "vector.weight", 1e-5),
    "layer_norm": lambda g, x: g.layer_norm(x, "square.bias", "vector.weight", 1e-5),
    "add": lambda g, x: g.add(x, heads(g, x)),
    "scale_by": lambda g, x: g.scale_by(x, "vector.weight"),
    "scale_by, other heads": lambda g, x: g.scale_by(heads(g, x), "square.weight"),
    "scale_by, matrix": lambda g, x: g.scale_by(x, "square.weight"),
    "shift_by": lambda g, x: g.shift_by(x, "vector.weight"),
    "mul": lambda g, x: g.mul(x, g.output_rows(x)),
    "activation": lambda g, x: g.activation(x, "swish"),
    "gated": lambda g, x: g.gated(x, g.slice(x, 0, 2)),
    "concat": lambda g, x: g.concat(x, heads(g, x)),
    "slice, after": lambda g, x: g.slice(x, 3, W + 1),
    "slice, empty": lambda g, x: g.slice(x, 3, 3),
    "split_heads": lambda g, x: g.split_heads(x, 5),
    "heads, none": lambda g, x: g.split_heads(x, 0),
    "attention, window": lambda g, x: g.attention(*[heads(g, x)] * 3, layer=0, scale=1, window=-1),
    "route, no groups": lambda g, x: g.route(x, "router.weight", n_used=1, n_groups=0),
    "rope, negative axis": lambda g, x: g.rope(heads(g, x), g.inputs.positions, [1.0], axes=[-1]),
    "causal_conv, channels": lambda g, x: g.causal_conv(g.slice(x, 0, 3), "square.weight", layer=0),
    "causal_conv, heads": lambda g, x: g.causal_conv(heads(g, x), "square.weight", layer=0),
    "causal_conv, vector": lambda g, x: g.causal_conv(x, "square.bias", layer=0),
    "causal_conv, kind": lambda g, x: g.causal_conv(x, "square.weight", layer=0, kind="relu"),
    "causal_conv, output rows": lambda g, x: g.causal_conv(
        g.output_rows(x), "square.weight", layer=0
    ),
    "block_mean, no rows": lambda g, x: g.block_mean(x, 0),
    "block_mean, too many": lambda g, x: g.block_mean(x, MAX_BLOCK + 1),
    "block_mean, heads": lambda g, x: g.block_mean(heads(g, x), 4),
    "block_mean, output rows": lambda g, x: g.block_mean(g.output_rows(x), 4),
    "block_conv, rows": lambda g, x: convolved(g, g.slice(x, 0, 3)),
    "block_conv, matrix": lambda g, x: convolved(g, x, "square.weight"),
    "block_conv, changes": lambda g, x: convolved(g, x, n=7),
    "block_conv, groups": lambda g, x: g.block_conv(
        x, g.concat(x, g.slice(x, 0, 3)), "kernels.weight", size=4
    ),
    "block_conv, output changes": lambda g, x: g.block_conv(
        x, g.output_rows(x), "kernels.weight", size=4
    ),
    "block_conv, output rows": lambda g, x: convolved(g, g.output_rows(x)),
    "block_conv, part": lambda g, x: convolved(g, x, part=2),
    "block_conv, no rows": lambda g, x: convolved(g, x, size=0),
    "find_best, none": lambda g, x: g.find_best(x, 0),
    "find_best, more than there are": lambda g, x: g.find_best(x, W + 1),
    "find_best, heads": lambda g, x: g.find_best(heads(g, x), 2),
    "embed_ids, no ids": lambda g, x: g.embed_ids(g.inputs.tokens, "embd.weight"),
    "embed_ids, of other columns": lambda g, x: g.embed_ids(
        g.find_best(g.slice(x, 0, 3), 2)[0], "square.weight"
    ),
    "embed_ids, no table": lambda g, x: g.embed_ids(g.find_best(x, 2)[0], "stack.weight"),
    "rank_matmul, rows": lambda g, x: g.rank_matmul(x, "square.weight"),
    "rank_matmul, width": lambda g, x: g.rank_matmul(heads(g, x), "square.weight"),
    "rank_matmul, stack": lambda g, x: g.rank_matmul(heads(g, x), "stack.weight"),
    "block_attention, rows": lambda g, x: attended(g, x),
    "block_attention, keys": lambda g, x: attended(g, heads(g, x), heads(g, x, 2)),
    "block_attention, heads": lambda g, x: attended(g, heads(g, x, 4)),
    "block_attention, distances": lambda g, x: attended(g, heads(g, x), size=4),
    "block_attention, first": lambda g, x: attended(g, heads(g, x), first=3),
    "block_attention, output rows": lambda g, x: attended(g, g.output_rows(heads(g, x))),
    "block_attention, too many": lambda g, x: attended(g, heads(g, x), size=MAX_CANDIDATES),
    "block_walk, ids": lambda g, x: walk(g, x, n=2),
    "block_walk, start": lambda g, x: walk(g, x, start=3),
    "block_walk, coming": lambda g, x: walk(g, x, coming=4),
    "block_walk, columns": lambda g, x: walk(g, x, width=13),
    "block_walk, first": lambda g, x: walk(g, x, first=-1),
    "block_walk, no rows": lambda g, x: walk(g, x, size=0),
    "keep_best, none": lambda g, x: g.keep_best(x, 0),
    "keep_best, too many": lambda g, x: g.keep_best(x, MAX_BEST + 1),
    "keep_best, heads": lambda g, x: g.keep_best(heads(g, x), 2),
    "block_mix, channels": lambda g, x: g.block_mix(g.slice(x, 0, 3), "mixer.weight"),
    "block_mix, matrix": lambda g, x: g.block_mix(x, "square.weight"),
    "block_mix, not square": lambda g, x: g.block_mix(x, "tall.weight"),
    "block_mix, heads": lambda g, x: g.block_mix(heads(g, x), "mixer.weight"),
    "block_mix, output rows": lambda g, x: g.block_mix(g.output_rows(x), "mixer.weight"),
    "causal_conv, twice": lambda g, x: [
        g.causal_conv(x, "square.weight", layer=2) for _ in range(2)
    ],
    "delta_rule, keys": lambda g, x: delta(g, x, k=heads(g, x, 2)),
    "delta_rule, rows": lambda g, x: delta(g, x, v=x),
    "delta_rule, heads": lambda g, x: delta(g, x, v=heads(g, x, 4), beta=g.slice(x, 0, 4)),
    "delta_rule, decay": lambda g, x: delta(g, x, decay=g.slice(x, 0, 4)),
    "delta_rule, decay of channels": lambda g, x: delta(g, x, decay=heads(g, x, 6)),
    "delta_rule, decay of columns": lambda g, x: delta(g, x, rates="square.weight"),
    "delta_rule, rates": lambda g, x: delta(g, x, decay=heads(g, x), rates="square.weight"),
    "delta_rule, beta": lambda g, x: delta(g, x, beta=heads(g, x)),
    "delta_rule, order": lambda g, x: delta(g, x, key_heads="shuffled"),
    "delta_rule, output rows": lambda g, x: delta(g, g.output_rows(x)),
    "delta_rule, twice": lambda g, x: [delta(g, x) for _ in range(2)],
    "merge_heads": lambda g, x: g.merge_heads(x),
    "rope, too wide": lambda g, x: g.rope(heads(g, x), g.inputs.positions, [1.0] * 3),
    "rope, axes": lambda g, x: g.rope(heads(g, x), g.inputs.positions, [1.0, 1.0], axes=[0, 1]),
    "rope, style": lambda g, x: g.rope(heads(g, x), g.inputs.positions, [1.0], style="spiral"),
    "rope, factors": lambda g, x: g.rope(
        heads(g, x, 2), g.inputs.positions, [1.0] * 3, factors="two.weight"
    ),
    "attention, widths": lambda g, x: g.attention(
        heads(g, x), heads(g, x, 2), heads(g, x, 2), layer=0, scale=1
    ),
    "attention, groups": lambda g, x: g.attention(
        heads(g, x), *[heads(g, g.slice(x, 0, 8), 2)] * 2, layer=0, scale=1
    ),
    "attention, mask": lambda g, x: g.attention(*[heads(g, x)] * 3, layer=0, scale=1, mask="tree"),
    "attention, sinks": lambda g, x: g.attention(
        *[heads(g, x)] * 3, layer=0, scale=1, sinks="vector.weight"
    ),
    "attention, no values": lambda g, x: g.attention(*[heads(g, x)] * 2, 5, layer=0, scale=1),
    "head_matmul, heads": lambda g, x: g.head_matmul(heads(g, x, 2), "stack.weight"),
    "head_matmul, widths": lambda g, x: g.head_matmul(heads(g, g.slice(x, 0, 6)), "stack.weight"),
    "head_matmul, matrix": lambda g, x: g.head_matmul(heads(g, x), "square.weight"),
    "repeat": lambda g, x: g.repeat(heads(g, x), 3),
    "repeat, none": lambda g, x: g.repeat(heads(g, x, 1), 0),
    "route, used": lambda g, x: g.route(x, "router.weight", n_used=4),
    "route, gate": lambda g, x: g.route(x, "router.weight", n_used=1, gate="tanh"),
    "route, groups": lambda g, x: g.route(x, "router.weight", n_used=1, n_groups=2),
    "route, bias": lambda g, x: g.route(x, "router.weight", bias="vector.weight", n_used=1),
    "route, factors": lambda g, x: g.route(x, "router.weight", factors="vector.weight", n_used=1),
    "expert_matmul, bias": lambda g, x: g.expert_matmul(
        x, g.route(x, "router.weight", n_used=1)[0], "stack.weight", "router.weight"
    ),
    "gated, limit": lambda g, x: g.gated(x, x, limit=-1.0),
    "gated, offset": lambda g, x: g.gated(x, x, offset=2),
    "embed, absent": lambda g, x: g.embed(g.inputs.tokens, "embd.weight", absent=V),
    "embed, absent and rows": lambda g, x: g.embed(
        g.inputs.tokens, "embd.weight", embeddings=True, absent=0
    ),
    "attend, nothing stored": lambda g, x: g.attend(heads(g, x), layer=0, scale=1.0),
    "attend, other heads": lambda g, x: attend(g, x, g.split_heads(x, 4)),
    "attend, not evenly": lambda g, x: attend(g, x, g.slice(heads(g, x, 1), 0, 4)),
    "attend, wider window": lambda g, x: attend(g, x, heads(g, x), window=6),
    "attend, no window": lambda g, x: attend(g, x, heads(g, x), window=0),
    "cluster_matmul": lambda g, x: clusters(g, g.slice(x, 0, 5), "order.weight"),
    "cluster_matmul, not even": lambda g, x: clusters(g, x, "order.weight", "odd.weight"),
    "cluster_matmul, ordering": lambda g, x: clusters(g, x, "vector.weight"),
    "cluster_matmul, tokens": lambda g, x: g.cluster_matmul(
        x, g.inputs.tokens, "square.weight", "order.weight"
    ),
    "route, correction": lambda g, x: g.route(x, "router.weight", "vector.weight", n_used=1),
    "expert_matmul": lambda g, x: g.expert_matmul(
        g.slice(x, 0, 5), g.route(x, "router.weight", n_used=1)[0], "stack.weight"
    ),
    "route, heads": lambda g, x: g.route(heads(g, x, W), "router.weight", n_used=1),
    "route, stack": lambda g, x: g.route(x, "stack.weight", n_used=1),
    "expert_matmul, fewer experts": lambda g, x: g.expert_matmul(
        x, g.route(x, "router.weight", n_used=1)[0], "short.weight"
    ),
    "expert_matmul, more experts": lambda g, x: g.expert_matmul(
        x, g.route(x, "router.weight", n_used=1)[0], "long.weight"
    ),
    "expert_matmul, positions": lambda g, x: g.expert_matmul(x, g.inputs.positions, "stack.weight"),
    "expert_matmul, tokens": lambda g, x: g.expert_matmul(x, g.inputs.tokens, "stack.weight"),
    "rope, ids of experts": lambda g, x: g.rope(
        heads(g, x), g.route(x, "router.weight", n_used=1)[0], [1.0]
    ),
    "mul, heads": lambda g, x: g.mul(heads(g, x), g.slice(x, 0, 4)),
    "mul, rows by heads": lambda g, x: g.mul(x, heads(g, x)),
    "clamp, nothing left": lambda g, x: g.clamp(x, 0.0),
    "clamp, no limit": lambda g, x: g.clamp(x, float("inf")),
    "clamp, no number": lambda g, x: g.clamp(x, float("nan")),
    "xielu, no number": lambda g, x: g.xielu(
        x, alpha_p=1.0, alpha_n=float("nan"), beta=0.5, eps=0.0
    ),
    "gaussian_topk, no number": lambda g, x: g.gaussian_topk(x, float("inf")),
    "scale_by_position, no parts": lambda g, x: sharpened(g, x, n=0),
    "scale_by_position, offset": lambda g, x: sharpened(g, x, offset=-1),
    "scale_by_position, large": lambda g, x: sharpened(g, x, n=1 << 31),
    "scale_by_position, beta": lambda g, x: sharpened(g, x, beta=float("nan")),
    "scale_by_position, outputs": lambda g, x: sharpened(g, g.output_rows(x)),
    "attention, negative softcap": lambda g, x: scored(g, x, softcap=-1.0),
    "attention, softcap": lambda g, x: scored(g, x, softcap=float("inf")),
    "attention, softcap of nothing": lambda g, x: scored(g, x, softcap=float("nan")),
    "attention, alibi": lambda g, x: scored(g, x, max_alibi_bias=-8.0),
    "attention, alibi of spans": lambda g, x: scored(g, x, max_alibi_bias=8.0, mask="spans"),
    "attention, two biases": lambda g, x: scored(
        g, x, max_alibi_bias=8.0, bias="biases.weight", max_distance=9
    ),
    "group_ids, no group": lambda g, x: g.group_ids(g.route(x, "router.weight", n_used=2)[0], 0),
    "group_ids, a part of a group": lambda g, x: g.group_ids(
        g.route(x, "router.weight", n_used=2)[0], 2
    ),
    "group_ids, tokens": lambda g, x: g.group_ids(g.inputs.tokens, 1),
    "group_ids, more groups than matrices": lambda g, x: g.expert_matmul(
        x, g.group_ids(g.route(x, "router.weight", n_used=2)[0], 3), "stack.weight"
    ),
    "given_ids, of nothing": lambda g, x: g.given_ids(g.inputs.codes(2), 0),
    "given_ids, numbers": lambda g, x: g.given_ids(x, 3),
    "given_ids, rows": lambda g, x: g.given_ids(g.inputs.codes(2), 3, rows="n_sources"),
    "given_ids, ids": lambda g, x: g.given_ids(g.route(x, "router.weight", n_used=2)[0], 3),
    "given_ids, no matrix for none": lambda g, x: g.expert_matmul(
        x, g.given_ids(g.inputs.codes(2), 4), "stack.weight"
    ),
    "pair_ids, tokens": lambda g, x: g.pair_ids(
        g.inputs.codes(2), g.route(x, "router.weight", n_used=2)[0], 0
    ),
    "pair_ids, column": lambda g, x: g.pair_ids(
        g.given_ids(g.inputs.codes(2), 3), g.route(x, "router.weight", n_used=2)[0], 2
    ),
    "pair_ids, matrices": lambda g, x: g.expert_matmul(
        x,
        g.pair_ids(g.given_ids(g.inputs.codes(2), 3), g.route(x, "router.weight", n_used=2)[0], 0),
        "stack.weight",
    ),
    "token_ids, numbers": lambda g, x: g.token_ids(x, g.given_ids(g.inputs.codes(2), 3), 9),
    "token_ids, of outputs": lambda g, x: g.token_ids(
        g.inputs.tokens, g.given_ids(g.inputs.codes(2), 3, rows="n_outputs"), 9
    ),
    "token_ids, absent": lambda g, x: g.token_ids(
        g.inputs.tokens, g.given_ids(g.inputs.codes(2), 3), 9, absent=9
    ),
    "token_ids, rows": lambda g, x: g.embed_ids(
        g.token_ids(g.inputs.tokens, g.given_ids(g.inputs.codes(2), 3), 9), "embd.weight"
    ),
    "token_ids, tables": lambda g, x: g.add_node(
        "token_ids",
        [g.inputs.tokens, g.given_ids(g.inputs.codes(2), 3)],
        n_first=3,
        n_second=9,
        absent=-1,
    ),
    "scale_chosen": lambda g, x: chosen(g, x, "router.weight"),
    "scale_chosen, fewer factors": lambda g, x: chosen(g, x, "two.weight"),
    "scale_chosen, rows": lambda g, x: g.scale_chosen(
        x, g.route(x, "router.weight", n_used=2)[0], "three.weight"
    ),
    "scale_chosen, more ranks": lambda g, x: g.scale_chosen(
        heads(g, x), g.route(x, "router.weight", n_used=2)[0], "three.weight"
    ),
    "scale_chosen, tokens": lambda g, x: g.scale_chosen(
        heads(g, x, 2), g.inputs.tokens, "three.weight"
    ),
    "mix": lambda g, x: g.mix(heads(g, x), g.route(x, "router.weight", n_used=2)[1]),
    "add_chosen, rows": lambda g, x: added(g, heads(g, x), heads(g, x, 2)),
    "add_chosen, width": lambda g, x: added(g, x, heads(g, x, 2)),
    "add_chosen, ranks": lambda g, x: added(g, g.slice(x, 0, 6), heads(g, x, 2), n_used=3),
    "add_chosen, ids of others": lambda g, x: added(g, g.slice(x, 0, 6), heads(g, x, 2), n=2),
    "outputs, twice": lambda g, x: g.output_rows(g.output_rows(x)),
    "unknown operation": lambda g, x: g.add_node("teleport", [x]),
    "inputs": lambda g, x: g.add_node("add", [x]),
    "weights": lambda g, x: g.add_node("scale", [x], ["square.weight"], factor=1.0),
    "attributes": lambda g, x: g.add_node("scale", [x]),
    "absent tensor": lambda g, x: g.matmul(x, "blk.4.gone.weight"),
    "undeclared slot": lambda g, x: g.inputs["hidden"],
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit(name):
    g, x = builder()
    with pytest.raises(GraphError) as caught:
        WRONG[name](g, x)
    assert caught.value.where


@pytest.mark.parametrize(
    ("shape", "n", "wanted"),
    [
        ((96,), 2, (1, 96)),
        ((1, 96), 1, (96,)),
        ((1, 1, 1, 96), 2, (1, 96)),
        ((1,), 1, (1,)),
        ((), 1, (1,)),
        ((7, 1), 3, (1, 7, 1)),
        ((3, 7, 5), 2, (3, 7, 5)),
        ((3, 1, 5), 2, (3, 1, 5)),
    ],
)
def test_axes_of_1_at_the_front_are_as_good_as_none(shape, n, wanted):
    assert fit_axes(shape, n) == wanted


@pytest.mark.parametrize("op", OPS)
def test_every_weight_of_an_operation_has_a_number_of_axes(op):
    assert len(OPS[op].axes) == OPS[op].weights[1]


@pytest.mark.parametrize("shape", [(W, 4), (W, 1, 4), (1, W, 1, 4)])
def test_a_kernel_may_have_the_axis_that_checkpoints_give_it(shape):
    g = GraphBuilder("test", {"embd": np.zeros((V, W)), "kernel": np.zeros(shape)})
    x = g.causal_conv(g.embed(g.inputs.tokens, "embd"), "kernel", layer=3)
    (state,) = g.finish(Outputs(logits=g.matmul(g.output_rows(x), "embd"))).states
    assert state == ConvLayer(3, W, 4)


@pytest.mark.parametrize("more", [(), (1,), (1, 1)])
def test_operations_read_weights_whatever_axes_of_1_a_file_has(more):
    """ggml drops them at its end; a shared expert's router, [1, width], then is a vector."""
    n, key_width = 7, 5
    shapes = {
        "embd": (V, W),
        "router of one": (W,),
        "norm": (W,),
        "one of all": (),
        "router of experts": (3, W),
        "correction": (3,),
        "experts": (3, n, W),
        "one head": (key_width, W),
        "joined heads": (3 * key_width, W // 3),
    }
    tensors = {name: np.zeros((*more, *shape)) for name, shape in shapes.items()}
    g = GraphBuilder("toy", tensors)
    x = g.embed(g.inputs.tokens, "embd")
    x = g.scale_by(g.rms_norm(x, "norm", 1e-5), "one of all")
    assert g.matmul(x, "router of one").shape[1:] == (1,)
    ids, _ = g.route(x, "router of experts", "correction", n_used=1)
    assert g.expert_matmul(x, ids, "experts").shape[1:] == (1, n)
    assert g.head_matmul(heads(g, x, 1), "one head").shape[1:] == (1, key_width)
    last = g.head_matmul(heads(g, x), "joined heads")
    assert last.shape[1:] == (3, key_width)
    program = g.finish(Outputs(logits=g.output_rows(g.merge_heads(last))))
    check(program)
    assert {name: weight.shape for name, weight in program.weights().items()} == {
        **{name: (*shape,) for name, shape in shapes.items()},
        "router of one": (1, W),
        "one of all": (1,),
        "one head": (1, key_width, W),
        "joined heads": (3, key_width, W // 3),
    }


@pytest.mark.parametrize("n_heads", [3, 4])
def test_a_factor_of_each_head_is_none_of_values_where_heads_are_as_wide_as_many(n_heads):
    width = n_heads * n_heads
    g = GraphBuilder("toy", {"embd": np.zeros((V, width)), "of heads": np.zeros((n_heads, 1))})
    x = g.scale_by(g.split_heads(g.embed(g.inputs.tokens, "embd"), n_heads), "of heads")
    program = g.finish(Outputs(logits=g.output_rows(g.merge_heads(x))))
    assert program.weights()["of heads"].shape == (n_heads, 1)


@pytest.mark.parametrize("mask", MASKS)
def test_a_bias_counts_distances_where_no_row_lies_in_a_span(mask):
    g, x = builder()
    settings = {"layer": 0, "scale": 1, "mask": mask, "bias": "embd.weight"}
    if mask == "spans":
        with pytest.raises(GraphError, match="rows of spans see each other"):
            g.attention(*[heads(g, x, W)] * 3, **settings)
    else:
        assert g.attention(*[heads(g, x, W)] * 3, **settings).shape[1:] == (W, 1)


def test_outputs_are_rows_of_numbers():
    g = builder()[0]
    outputs = Outputs(mine=g.inputs.tokens)
    with pytest.raises(GraphError, match="'mine' does not consist of numbers") as caught:
        g.finish(outputs)
    assert caught.value.got == "tokens, i32"


def test_errors_name_node_tensor_and_shapes():
    g, x = builder()
    with pytest.raises(GraphError) as caught:
        g.matmul(x, "narrow.weight", name="projection")
    error = caught.value
    assert error.where == "projection (matmul, narrow.weight)"
    assert error.wanted == "[rows, 11]"
    assert error.got == ("n_tokens", 12)
    with pytest.raises(GraphError, match=r"near: blk\.4\.own\.weight"):
        GraphBuilder("toy", TENSORS).resolve("x") or g.matmul(x, "blk.9.own.weight")


def test_nodes_are_named_after_their_weights():
    g, x = builder(n=4)
    g.scale(g.matmul(x, "blk.{n}.own.weight"), 2)
    names = [node.name for node in g.finish(Outputs(y=x)).nodes]
    assert names == ["embd", "blk.4.own", "scale_2"]


def test_ties_and_absent_biases():
    tie = first_of("blk.{n}.lost.weight", "blk.{n}.own.weight", "square.weight")
    g, x = builder(ties=[tie], n=4)
    assert g.resolve("blk.{n}.lost.weight").tensor == "blk.4.own.weight"
    assert g.resolve("blk.{n}.lost.weight").wanted == "blk.4.lost.weight"
    g.matmul(x, "blk.{n}.lost.weight", "blk.{n}.lost.bias")
    assert len(g.finish(Outputs(y=x)).nodes[-1].weights) == 1
    g, _ = builder(ties=[tie], n=5)
    assert g.resolve("blk.{n}.lost.weight").tensor == "square.weight"
    assert not GraphBuilder("toy", {}, ties=[tie], n=5).has("blk.{n}.lost.weight")


def test_taps():
    g, x = builder(taps=[Tap("hidden")])
    assert g.tap("residual", x) is x
    g.tap("hidden", g.scale(x, 2))
    assert list(g.finish(Outputs(y=x)).outputs) == ["y", "hidden"]
    g, x = builder(taps=[Tap("hidden"), Tap("layer_input", 3)])
    g.tap("hidden", x)
    with pytest.raises(GraphError) as caught:
        g.finish(Outputs(y=x))
    assert caught.value.wanted == "hidden"
    assert caught.value.got == "layer_input:3"


def test_logits_are_of_output_rows():
    g, x = builder()
    with pytest.raises(GraphError, match="output rows only"):
        g.finish(Outputs(logits=x))


def test_logits_have_two_axes():
    g, x = builder()
    with pytest.raises(GraphError, match="output rows only"):
        g.finish(Outputs(logits=g.split_heads(g.output_rows(x), 3)))


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("more_tokens", ("n_tokens",), "i32"),
        ("places", ("n_tokens", 2), "i32"),
        ("flat", ("n_tokens",), "f32"),
        ("split_heads", ("n_tokens", 2, 3), "f32"),
        ("late", ("n_outputs", 3), "f32"),
    ],
)
def test_inputs_are_what_batches_have(name, shape, dtype):
    g, x = builder()
    g.add_input(name, shape, dtype)
    with pytest.raises(GraphError, match="an input that no batch has") as caught:
        g.finish(Outputs(y=x))
    assert caught.value.where == name


def test_a_stack_of_other_experts_is_named():
    g, x = builder()
    ids, _ = g.route(x, "router.weight", n_used=2)
    with pytest.raises(GraphError) as caught:
        g.expert_matmul(x, ids, "short.weight")
    error = caught.value
    assert error.where == "short (expert_matmul, short.weight)"
    assert (error.wanted, error.got) == ((3, "..."), (2, 7, 12))
    assert error.fix


def test_one_slot_is_fed_whole_sequences():
    g, x = builder(slots={"picture": W, "sound": W}, whole=("picture", "sound"))
    for layer, slot in enumerate(("picture", "sound")):
        seen = heads(g, g.inputs[slot])
        x = g.merge_heads(g.cross_attention(heads(g, x), seen, seen, layer=layer, scale=1.0))
    with pytest.raises(GraphError, match="one slot of a graph is fed whole") as caught:
        g.finish(Outputs(y=x))
    assert caught.value.got == "picture, sound"


def test_memory_layers():
    g, x = builder()
    q = heads(g, x)
    g.attention(q, q, q, layer=2, scale=1, window=9)
    with pytest.raises(GraphError, match="written twice"):
        g.attention(q, q, q, layer=2, scale=1)
    wanted = MemoryLayer(layer=2, n_heads=3, k_width=4, v_width=4, window=9)
    g.attention(q, q, 3, layer=3, scale=1)
    latent = MemoryLayer(layer=3, n_heads=3, k_width=4, v_width=3, latent=True)
    assert g.finish(Outputs(y=x)).memory == (wanted, latent)
    assert (wanted.n_values, latent.n_values) == (24, 12)


def test_inputs_are_added_once():
    g = GraphBuilder("toy", TENSORS, slots={"hidden": 5}, axes=3)
    assert g.inputs["hidden"] is g.inputs["hidden"]
    assert g.inputs["hidden"].shape == ("n_tokens", 5)
    assert g.inputs.positions.shape == ("n_tokens", 3)
    g.embed(g.inputs.tokens, "embd.weight", embeddings=True)
    program = g.finish(Outputs(y=g.inputs["hidden"]))
    assert list(program.inputs) == ["tokens", "positions", "hidden", "embeddings"]


def test_programs_are_checked_whatever_made_them():
    g, x = builder()
    program = g.finish(Outputs(y=g.matmul(x, "square.weight", "square.bias")))
    check(program)
    changed = msgspec.structs.replace
    embed, matmul = program.nodes
    for broken in (
        changed(program, nodes=(matmul, embed)),
        changed(program, nodes=(embed,)),
        changed(program, nodes=(embed, changed(matmul, op="rms_norm"))),
        changed(program, outputs={"y": 99}),
        changed(program, values=(*program.values[:-1], changed(program.values[-1], dtype="i32"))),
    ):
        with pytest.raises(GraphError):
            check(broken)


def test_embedding_rows_are_for_every_embed_and_for_it_alone():
    """They are there for tokens of -1, and for no others."""
    g = builder()[0]
    x = g.embed(g.inputs.tokens, "embd.weight", embeddings=True)
    with pytest.raises(GraphError, match="may be -1") as caught:
        g.finish(Outputs(y=x))
    assert caught.value.where == "embd"
    for of_all in (True, False):
        g = GraphBuilder("toy", TENSORS)
        g.embed(g.inputs.tokens, "embd.weight", embeddings=True)
        rows = g.add_input("embeddings", ("n_tokens", W))
        with pytest.raises(GraphError, match="for some tokens only"):
            g.finish(Outputs(y=g.scale(rows, 2.0) if of_all else rows))


def test_printed_program():
    g, x = builder()
    text = str(g.finish(Outputs(logits=g.matmul(g.output_rows(x), "embd.weight"))))
    assert text.splitlines() == [
        "program toy",
        "  input tokens = %0:i32[n_tokens]",
        "  input positions = %1:i32[n_tokens, 1]",
        "  %2:f32[n_tokens, 12] = embed(%0, embd.weight, scale=1.0, absent=-1)  # embd",
        "  %3:f32[n_outputs, 12] = outputs(%2)  # outputs_1",
        "  %4:f32[n_outputs, 20] = matmul(%3, embd.weight)  # embd",
        "  output logits = %4",
    ]


def test_every_operation_says_what_it_means():
    assert all(rule.meaning for rule in OPS.values())


def test_graph_types_are_values():
    assert GraphType("llm") == GraphType.LLM == GraphType(GraphType.LLM)
    assert GraphType("fusion") == GraphType("fusion") != GraphType.DRAFT != "draft"
    assert {GraphType("fusion"), GraphType("fusion")} == {
        pickle.loads(pickle.dumps(GraphType("fusion")))
    }
    with pytest.raises(AttributeError):
        GraphType.LLM.name = "draft"
    for name in ("not a name", "", 3, None):
        with pytest.raises(GraphError, match="identifier"):
            GraphType(name)


def test_the_block_of_a_head_is_a_heads():
    assert GraphBuilder("head", {}, n=7).n == 7
    with pytest.raises(GraphError, match="no head's block"):
        _ = GraphBuilder("trunk", {}).n
