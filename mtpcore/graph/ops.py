"""Every operation that a graph may use, as data.

Each has one rule: how many inputs and weights, which attributes, and how the output's shape
follows. ``infer`` gives a node its shapes by it, ``check`` verifies whole programs, and a
backend that implements this table can run any graph. Shapes are in NumPy order; ``T`` stands for
rows (tokens or outputs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mtpcore.graph.parts import part_sizes
from mtpcore.graph.program import OUTPUTS, SOURCES, TOKENS, Shape

__all__ = ["OPS", "ACTIVATIONS", "MASKS", "Signatures", "Mismatch", "OpRule", "WeightShapes"]

MASKS = ("causal", "block", "spans")
"""What a row of attention sees: all up to itself, all of its sequence, or all up to the end of the
span that it is in."""

MAX_BLOCK = 1 << 10
"""How many rows a block has at most."""

MAX_TAPS, MAX_BEST = 32, 256
"""How many rows a convolution over a block reads at most, and how many values of a row are kept."""

MAX_CANDIDATES = 1 << 11
"""How many candidates a block has at most, of all of its rows together."""

MAX_DISTANCE, MAX_BUCKETS = 1 << 12, 1 << 10
"""How many places a relative position bias may tell apart at most, and in how many buckets."""

MAX_POSITION = (1 << 31) - 1

ACTIVATIONS = (
    "silu",
    "gelu",
    "gelu_tanh",
    "relu",
    "sigmoid",
    "tanh",
    "softplus",
    "gelu_sigmoid",
)

Signatures = tuple[tuple[Shape, str], ...]
WeightShapes = Sequence[tuple[int, ...] | None]
ShapeRule = Callable[[Sequence[Shape], WeightShapes, dict[str, Any]], Signatures]


class OpRule(NamedTuple):
    """Inputs and weights an operation takes (least, most), attributes, and its shape rule.

    ``integers`` are the inputs, by their number from 0, that are i32; all others are f32. ``ids``
    are those of them that choose among the matrices of the first weight. An output that is i32
    chooses among the rows of the first weight, or where there is none the columns of the input.
    ``integer_weights`` are the weights, by their number from 0, that hold integers; all others are
    floating-point. ``axes`` is how many each weight has; ``joins_heads`` says that the matrices of
    the first one may lie in the file as one, those of a head after those of the head before it.
    """

    inputs: tuple[int, int]
    weights: tuple[int, int]
    attrs: frozenset[str]
    shape: ShapeRule
    meaning: str
    integers: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    integer_weights: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    joins_heads: bool = False


class Mismatch(Exception):
    """A shape rule's complaint: what was wanted and what was found."""

    def __init__(self, what: str, wanted: object, got: object) -> None:
        super().__init__(what)
        self.what, self.wanted, self.got = what, wanted, got


def _want(condition: bool, what: str, wanted: object, got: object) -> None:
    if not condition:
        raise Mismatch(what, wanted, got)


def _f32(*shape: Any) -> Signatures:
    return ((tuple(shape), "f32"),)


def _embed(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    table = w[0]
    assert table is not None
    _want(len(table) == 2, "an embedding table has two axes", "[n_vocab, width]", table)
    _want(len(x[0]) == 1, "a row of the table is looked up for each token", "[rows]", x[0])
    if len(x) == 2:
        _want(x[1][-1] == table[1], "embedding rows do not fit the table", table[1], x[1][-1])
    fits = -1 <= a["absent"] < table[0] and (a["absent"] < 0 or len(x) == 1)
    _want(fits, "one row for what is no token", f"-1 (none)..{table[0] - 1}", a["absent"])
    return _f32(x[0][0], table[1])


def _embedding_rows(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    _want(x[0] == (TOKENS,), "a row stands where a token does not", (TOKENS,), x[0])
    _want(len(x[1]) == 2 and x[1][0] == TOKENS, "rows have a width", f"[{TOKENS}, width]", x[1])
    return _f32(*x[1])


def _want_parts(table: Shape, n_parts: int, n_first: int) -> None:
    is_matrix = len(table) == 2 and isinstance(table[0], int)
    sizes = part_sizes(int(table[0]), n_parts, n_first) if is_matrix else (0, 0)
    wanted = f"[{n_parts} x rows, width]"
    if n_first:
        wanted = f"[{n_first} + {n_parts - 1} x rows, width]"
    _want(sizes != (0, 0), "a table has a part for each codebook", wanted, table)


def _embed_by_position(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    table = w[0]
    assert table is not None
    _want(x[1][0] == x[0][0], "each token has a position", x[0][0], x[1][0])
    _want_parts(table, a["n_parts"], a["n_first"])
    return _embed([x[0], *x[2:]], w, {"absent": -1})


def _embed_positions(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    table = w[0]
    assert table is not None
    _want(len(table) == 2, "a table of positions has two axes", "[positions, width]", table)
    _want(x[0] == (TOKENS, 1), "a position is one number", f"[{TOKENS}, 1]", x[0])
    return _f32(x[0][0], table[1])


def _embed_codes(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    table = w[0]
    assert table is not None
    _want(len(x[0]) == 2, "a row has several codes", "[rows, codes]", x[0])
    _want_parts(table, int(x[0][1]), a["n_first"])
    return _f32(x[0][0], table[1])


def _matmul_by_position(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    stack = w[0]
    assert stack is not None
    _want(len(stack) == 3, "matrices of positions are stacked", "[n, outputs, inputs]", stack)
    wanted = (x[0][0], stack[2])
    _want(x[0] == wanted, "rows do not fit the matrices", wanted, x[0])
    _want(x[1][0] == TOKENS, "positions are those of the batch", TOKENS, x[1][0])
    return _f32(x[0][0], stack[1])


def _matmul(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    matrix, bias = w[0], w[1] if len(w) > 1 else None
    assert matrix is not None
    _want(len(matrix) == 2, "a matrix has two axes", "[outputs, inputs]", matrix)
    _want(
        len(x[0]) == 2 and x[0][1] == matrix[1],
        "rows do not fit the matrix",
        f"[rows, {matrix[1]}]",
        x[0],
    )
    if bias is not None:
        _want(bias == (matrix[0],), "bias does not fit the matrix", (matrix[0],), bias)
    return _f32(x[0][0], matrix[0])


def _rms_norm(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    if w and w[0] is not None:
        _want(w[0] == (x[0][-1],), "norm weight does not fit the rows", (x[0][-1],), w[0])
    return _f32(*x[0])


def _layer_norm(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    for weight in w:
        if weight is not None:
            _want(weight == (x[0][-1],), "norm weight does not fit the rows", x[0][-1:], weight)
    return _f32(*x[0])


def _by_weight(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    width, heads = x[0][-1], x[0][1:-1]
    fits = w[0] in ((width,), (1,), (*heads, width), (*heads, 1))
    _want(fits, "not a weight for each value of a row or head, or one for all", (width,), w[0])
    return _f32(*x[0])


def _same(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    for other in x[1:]:
        _want(other == x[0], "shapes differ", x[0], other)
    return _f32(*x[0])


def _mul(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    if len(x[0]) == 3 and len(x[1]) == 2:
        _want(x[1] == x[0][:2], "not a factor for each head", x[0][:2], x[1])
        return _f32(*x[0])
    return _same(x, w, a)


def _clamp(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    _want(0 < a["limit"] < float("inf"), "no limit of values", "above 0", a["limit"])
    return _same(x, w, a)


def _xielu(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    for name in ("alpha_p", "alpha_n", "beta", "eps"):
        _want(abs(a[name]) < float("inf"), name, "a finite number", a[name])
    return _same(x, w, a)


def _gaussian_topk(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    _want(abs(a["n_deviations"]) < float("inf"), "no cutoff", "a finite number", a["n_deviations"])
    return _same(x, w, a)


def _scale_by_position(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    _want(x[0][0] == x[1][0], "each row has a position", x[1][0], x[0][0])
    for name, least in (("n", 1), ("offset", 0)):
        _want(least <= a[name] <= MAX_POSITION, name, f"{least}..{MAX_POSITION}", a[name])
    _want(abs(a["beta"]) < float("inf"), "no factor of a logarithm", "a finite number", a["beta"])
    return _f32(*x[0])


def _activation(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    _want(a["kind"] in ACTIVATIONS, "unknown activation", ", ".join(ACTIVATIONS), a["kind"])
    return _same(x, w, a)


def _gated(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    _want(0 <= a["limit"] < float("inf"), "no limit of gates", "0 (none) or more", a["limit"])
    _want(a["offset"] in (0, 1), "what is added to up", "0, 1", a["offset"])
    return _activation(x, w, a)


def _concat(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    for other in x[1:]:
        _want(other[:-1] == x[0][:-1], "leading axes differ", x[0][:-1], other[:-1])
    return _f32(*x[0][:-1], sum(int(s[-1]) for s in x))


def _slice(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    width = int(x[0][-1])
    _want(
        0 <= a["start"] < a["stop"] <= width,
        "slice leaves the rows",
        f"0 <= start < stop <= {width}",
        (a["start"], a["stop"]),
    )
    return _f32(*x[0][:-1], a["stop"] - a["start"])


def _split_heads(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    _want(
        len(x[0]) == 2 and a["n_heads"] > 0 and int(x[0][1]) % a["n_heads"] == 0,
        "rows do not split into heads",
        f"a width divisible by {a['n_heads']}",
        x[0],
    )
    return _f32(x[0][0], a["n_heads"], int(x[0][1]) // a["n_heads"])


def _merge_heads(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    _want(len(x[0]) == 3, "rows of heads have three axes", "[rows, heads, width]", x[0])
    return _f32(x[0][0], int(x[0][1]) * int(x[0][2]))


def _rope(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    _want(len(x[0]) == 3, "rope rotates heads", "[rows, heads, width]", x[0])
    _want(x[0][0] == x[1][0], "each row has a position", x[1][0], x[0][0])
    pairs = len(a["frequencies"])
    _want(
        0 < 2 * pairs <= int(x[0][2]),
        "more rotated dimensions than the head has",
        f"at most {x[0][2]}",
        2 * pairs,
    )
    _want(a["style"] in ("halves", "pairs"), "unknown rope style", "halves, pairs", a["style"])
    _want(
        len(a["axes"]) == pairs and 0 <= min(a["axes"]) <= max(a["axes"]) < int(x[1][1]),
        "each pair is rotated by one of the position's axes",
        f"{pairs} axes below {x[1][1]}",
        a["axes"],
    )
    if w and w[0] is not None:
        _want(w[0][0] >= pairs, "frequency factors do not fit", f"{pairs} or more", w[0])
    return _f32(*x[0])


def _head_matmul(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    stack = w[0]
    assert stack is not None
    _want(len(stack) == 3, "heads' matrices are stacked", "[heads, outputs, inputs]", stack)
    wanted = (x[0][0], stack[0], stack[2])
    _want(x[0] == wanted, "rows do not fit the heads' matrices", wanted, x[0])
    return _f32(x[0][0], stack[0], stack[1])


def _repeat(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    _want(len(x[0]) == 3 and x[0][1] == 1, "one head is repeated", "[rows, 1, width]", x[0])
    _want(a["n_heads"] > 0, "heads to make of it", "1 or more", a["n_heads"])
    return _f32(x[0][0], a["n_heads"], x[0][2])


def _attention(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    if len(x) == 1:
        return _attention_to_others(x[0], w, a)
    q, k = x[:2]
    if len(x) == 2:
        _want(len(k) == 3, "k is rows of heads", "[rows, heads, width]", k)
        fits = 0 < a["v_width"] <= int(k[2])
        _want(fits, "values are the first entries of k", f"1..{k[2]}", a["v_width"])
        v: Shape = (*k[:2], a["v_width"])
    else:
        v = x[2]
        _want(a["v_width"] == 0, "values are given, or part of k", 0, a["v_width"])
    for name, s in (("q", q), ("k", k), ("v", v)):
        _want(len(s) == 3, f"{name} is rows of heads", "[rows, heads, width]", s)
    for name, s in (("q", q), ("k", k), ("v", v)):
        _want(s[0] == TOKENS, f"{name} has all rows of the batch", TOKENS, s[0])
    _want(q[2] == k[2], "q and k widths differ", q[2], k[2])
    _want(k[1] == v[1], "k and v heads differ", k[1], v[1])
    _want(
        int(q[1]) % int(k[1]) == 0,
        "query heads do not share key heads evenly",
        f"a multiple of {k[1]}",
        q[1],
    )
    _check_sight(q, w, a)
    return _f32(q[0], q[1], v[2])


def _attention_to_others(q: Shape, w: WeightShapes, a: dict[str, Any]) -> Signatures:
    """Return the shape where another node stores keys and values."""
    fits = len(q) == 3 and q[0] == TOKENS
    _want(fits, "q has all rows of the batch, as heads", f"[{TOKENS}, heads, width]", q)
    _want(a["v_width"] > 0, "how wide the stored values are", "1 or more", a["v_width"])
    _check_sight(q, w, a)
    return _f32(q[0], q[1], a["v_width"])


def _check_sight(q: Shape, w: WeightShapes, a: dict[str, Any]) -> None:
    _want(a["mask"] in MASKS, "unknown mask", ", ".join(MASKS), a["mask"])
    _want(a["window"] >= 0, "a window counts places", "0 or more", a["window"])
    if w and w[0] is not None:
        _want(w[0] == (q[1],), "one sink a query head", (q[1],), w[0])
    bias = w[1] if len(w) > 1 else None
    _check_bias(q, bias, a)
    for name in ("softcap", "max_alibi_bias"):
        fits = 0 <= a[name] < float("inf")
        _want(fits, f"{name} of scores", "0 (none) or more", a[name])
    if a["max_alibi_bias"]:
        fits = bias is None and a["mask"] != "spans"
        _want(fits, "a linear bias besides another, or of spans", "one of them", a["mask"])


def _check_bias(q: Shape, bias: tuple[int, ...] | None, a: dict[str, Any]) -> None:
    furthest = a["max_distance"]
    if bias is None:
        _want(furthest == 0, "distances count where there is a bias", 0, furthest)
        return
    n_distinct = len(bias) == 2 and (bias[0] // 2 if a["mask"] == "block" else bias[0]) // 2
    _want(
        a["mask"] != "spans",
        "a bias by distance where rows of spans see each other",
        "no bias",
        bias,
    )
    fits = len(bias) == 2 and bias[1] == q[1] and n_distinct and bias[0] <= MAX_BUCKETS
    _want(bool(fits), "a bias for each bucket and head", f"[buckets, {q[1]}]", bias)
    _want(
        n_distinct < furthest <= MAX_DISTANCE,
        "distances beyond those that have a bucket each",
        f"{n_distinct + 1}..{MAX_DISTANCE}",
        furthest,
    )


def _remember(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    k, v = x
    for name, s in (("k", k), ("v", v)):
        _want(len(s) == 3, f"{name} is rows of heads", "[rows, heads, width]", s)
    _want(k[0] in (SOURCES, TOKENS), "rows of a sequence are kept", TOKENS, k[0])
    _want(k[:2] == v[:2], "k and v heads differ", k[:2], v[:2])
    return ()


def _cross_attention(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    q = x[0]
    _want(len(q) == 3, "q is rows of heads", "[rows, heads, width]", q)
    _want(q[0] == TOKENS, "q has all rows of the batch", TOKENS, q[0])
    fits = a["n_heads"] > 0 and int(q[1]) % a["n_heads"] == 0 and a["v_width"] > 0
    _want(
        fits,
        "query heads do not share key heads evenly",
        f"a multiple of {a['n_heads']} heads",
        q[1],
    )
    return _f32(q[0], q[1], a["v_width"])


def _causal_conv(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    kernel = w[0]
    assert kernel is not None
    _want(len(kernel) == 2 and kernel[1] > 0, "taps of channels", "[channels, kernel]", kernel)
    wanted = (TOKENS, kernel[0])
    _want(x[0] == wanted, "rows do not fit the convolution", wanted, x[0])
    _want(a["kind"] in ("silu", "none"), "unknown activation", "silu, none", a["kind"])
    return _f32(*x[0])


def _block_mean(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    fits = len(x[0]) == 2 and x[0][0] == TOKENS
    _want(fits, "a block has rows of the batch", f"[{TOKENS}, width]", x[0])
    _want(1 <= a["size"] <= MAX_BLOCK, "rows of a block", f"1..{MAX_BLOCK}", a["size"])
    return _f32(*x[0])


def _block_mix(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    weight = w[0]
    assert weight is not None
    fits = len(weight) == 3 and weight[0] == weight[1] and weight[2] == x[0][-1]
    _want(fits, "a weight for each two rows and channel", f"[rows, rows, {x[0][-1]}]", weight)
    return _block_mean(x, w, {"size": weight[0]})


def _block_conv(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    kernels, changes = w[0], x[1]
    assert kernels is not None
    fits = len(kernels) == 3 and 1 <= kernels[1] <= MAX_TAPS
    _want(fits, "kernels of channels", f"[kernels, 1..{MAX_TAPS} taps, channels]", kernels)
    _, n_taps, channels = kernels
    _want(0 <= a["part"] < kernels[0], "one of the kernels", f"0..{kernels[0] - 1}", a["part"])
    _want(x[0][-1] == channels, "rows do not fit the kernels", (TOKENS, channels), x[0])
    fits = len(changes) == 2 and changes[0] == TOKENS and int(changes[1]) % n_taps == 0
    _want(fits, "changes of each tap", f"[{TOKENS}, {n_taps} x groups]", changes)
    n_groups = int(changes[1]) // n_taps
    _want(channels % n_groups == 0, "groups do not divide the channels", channels, n_groups)
    return _block_mean(x, w, a)


def _keep_best(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    _want(len(x[0]) == 2, "the best values of rows", "[rows, width]", x[0])
    _want(1 <= a["n"] <= MAX_BEST, "how many are kept", f"1..{MAX_BEST}", a["n"])
    return _f32(*x[0])


def _find_best(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    _want(len(x[0]) == 2, "the best values of rows", "[rows, width]", x[0])
    most = min(int(x[0][1]), MAX_BEST)
    _want(1 <= a["n"] <= most, "how many are found", f"1..{most}", a["n"])
    return (((x[0][0], a["n"]), "i32"), ((x[0][0], a["n"], 2), "f32"))


def _embed_ids(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    table = w[0]
    assert table is not None
    _want(len(table) == 2, "an embedding table has two axes", "[n_vocab, width]", table)
    _want(len(x[0]) == 2, "ids are of rows and ranks", "[rows, used]", x[0])
    return _f32(*x[0], table[1])


def _rank_matmul(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    _want(len(x[0]) == 3, "rows of ranks", "[rows, ranks, width]", x[0])
    (shape, _), *_ = _matmul([(x[0][0], x[0][2])], w, a)
    return _f32(*x[0][:2], shape[1])


def _block_attention(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    q, k, v = x
    _want_candidates(q, a)
    _want(q == k == v, "q, k and v differ", q, (k, v))
    bias, n = w[0], 2 * a["size"] - 1
    fits = bias is not None and len(bias) == 2 and bias[1] == n and int(q[2]) % bias[0] == 0
    _want(fits, "a bias for each head and distance", f"[a divisor of {q[2]}, {n}]", bias)
    return _f32(*q)


def _want_candidates(x: Shape, a: dict[str, Any]) -> None:
    """Complain where a value has no candidates of a block's rows."""
    _want(len(x) == 3, "a row of candidates", "[rows, candidates, width]", x)
    _block_mean([x[:2]], (), a)
    n = a["size"] * int(x[1])
    _want(n <= MAX_CANDIDATES, "candidates of a block", f"at most {MAX_CANDIDATES}", n)
    _want(0 <= a["first"] < a["size"], "the first row", f"0..{a['size'] - 1}", a["first"])


def _block_walk(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    ids, start, going, coming = x
    _want_candidates(going, a)
    _want(going == coming, "a vector of each kind for each candidate", going, coming)
    _want(ids == going[:2], "an id for each candidate", going[:2], ids)
    wanted = (going[0], going[2])
    _want(start == wanted, "a vector that each walk begins with", wanted, start)
    return _f32(going[0], a["width"])


def _delta_rule(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    q, k, v, decay, beta = x
    for name, s in (("q", q), ("k", k), ("v", v)):
        _want(len(s) == 3, f"{name} is rows of heads", "[rows, heads, width]", s)
    for name, s in zip(("q", "k", "v", "decay", "beta"), x, strict=True):
        _want(s[0] == TOKENS, f"{name} has all rows of the batch", TOKENS, s[0])
    _want(q == k, "q and k differ", k, q)
    n_heads, n_key_heads = int(v[1]), int(k[1])
    fits = n_heads % n_key_heads == 0
    _want(fits, "heads do not share key heads evenly", f"a multiple of {n_key_heads}", n_heads)
    rates, wanted = w[0] if w else None, ((v[0], n_heads), (v[0], n_heads, k[2]))
    if rates is None:
        _want(decay in wanted, "a decay a head, or one for each entry of its key", wanted, decay)
    else:
        _want(decay == v, "a decay for each entry of a value", v, decay)
        each = n_heads * int(v[2]), int(k[2])
        _want(rates == each, "a rate for each entry of a state", each, rates)
    _want(beta == wanted[0], "a beta a head", wanted[0], beta)
    how = a["key_heads"]
    _want(how in ("tiled", "grouped"), "unknown order of heads", "tiled, grouped", how)
    return _f32(*v)


def _route(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    matrix = w[0]
    assert matrix is not None
    _want(len(matrix) == 2, "a router has two axes", "[experts, inputs]", matrix)
    wanted = (x[0][0], matrix[1])  # tokens, or those whose outputs are wanted
    _want(x[0] == wanted, "rows do not fit the router", wanted, x[0])
    n = matrix[0]
    for what, weight in zip(("correction", "bias", "factor"), w[1:], strict=False):
        if weight is not None:
            _want(weight == (n,), f"one {what} an expert", (n,), weight)
    _want(1 <= a["n_used"] <= n, "experts used", f"1..{n}", a["n_used"])
    _want(a["gate"] in ("sigmoid", "softmax"), "unknown gate", "sigmoid, softmax", a["gate"])
    _want(
        a["n_groups"] > 0
        and n % a["n_groups"] == 0
        and 1 <= a["n_groups_used"] <= a["n_groups"]
        and n // a["n_groups"] * a["n_groups_used"] >= a["n_used"],
        "groups do not fit",
        f"a divisor of {n}",
        (a["n_groups"], a["n_groups_used"]),
    )
    best = a["n_best_of_group"]
    _want(best in (1, 2), "experts that a group is judged by", "1, 2", best)
    shape: Shape = (x[0][0], a["n_used"])
    return ((shape, "i32"), (shape, "f32"))


def _expert_matmul(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    stack, ids, bias = w[0], x[1], w[1] if len(w) > 1 else None
    assert stack is not None
    _want(len(stack) == 3, "expert matrices are stacked", "[experts, outputs, inputs]", stack)
    _want(len(ids) == 2, "ids are of rows and ranks", "[rows, used]", ids)
    fits = x[0] in ((ids[0], stack[2]), (ids[0], ids[1], stack[2]))
    _want(
        fits, "rows do not fit the experts", f"[rows, {stack[2]}] or [rows, used, {stack[2]}]", x[0]
    )
    if bias is not None:
        _want(bias == tuple(stack[:2]), "biases do not fit the experts", tuple(stack[:2]), bias)
    return _f32(ids[0], ids[1], stack[1])


def _group_ids(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    _want(len(x[0]) == 2, "ids are of rows and ranks", "[rows, used]", x[0])
    _want(a["n_of_group"] > 0, "groups of no experts", "1 or more", a["n_of_group"])
    return ((x[0], "i32"),)


def _given_ids(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    _want(len(x[0]) == 2 and x[0][0] == TOKENS, "ids are given", f"[{TOKENS}, used]", x[0])
    _want(a["n"] > 0, "ids of nothing", "1 or more", a["n"])
    _want(a["rows"] in (TOKENS, OUTPUTS), "whose ids", f"{TOKENS}, {OUTPUTS}", a["rows"])
    return (((a["rows"], x[0][1]), "i32"),)


def _pair_ids(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    fits = len(x[0]) == len(x[1]) == 2 and x[0][0] == x[1][0]
    _want(fits, "ids are of the same rows", f"[{x[1][0]}, used]", x[0])
    _want(0 <= a["column"] < int(x[0][1]), "no such id", f"0..{int(x[0][1]) - 1}", a["column"])
    return ((x[1], "i32"),)


def _token_ids(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    n, absent = a["n_second"], a["absent"]
    _want(x[0] == (TOKENS,), "a row is a token's", f"[{TOKENS}]", x[0])
    _want(len(x[1]) == 2 and x[1][0] == TOKENS, "ids are of tokens", f"[{TOKENS}, used]", x[1])
    _want(n > 0 and -1 <= absent < n, "one row for what is no token", f"-1..{n - 1}", absent)
    return ((x[1], "i32"),)


def _scale_chosen(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    fits = len(x[0]) == 3 and x[0][:2] == x[1]
    _want(fits, "not a row for each rank", (*x[1], "width"), x[0])
    factors = w[0]
    _want(factors is not None and len(factors) == 1, "one factor an expert", "[experts]", factors)
    return _f32(*x[0])


def _cluster_matmul(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    matrix, ordering, n = w[0], w[1], a["n_clusters"]
    assert matrix is not None
    _want(len(matrix) == 2, "a matrix has two axes", "[outputs, inputs]", matrix)
    _want(x[0] == (x[1][0], matrix[1]), "rows do not fit the matrix", (x[1][0], matrix[1]), x[0])
    fits = n > 0 and matrix[0] % n == 0
    _want(fits, "rows do not lie in equal clusters", f"a multiple of {n}", matrix[0])
    _want(ordering == (matrix[0],), "not a cluster for each row", (matrix[0],), ordering)
    return _f32(x[0][0], matrix[0])


def _mix(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    _want(len(x[0]) == 3 and x[1] == x[0][:2], "one weight a row and rank", x[0][:2], x[1])
    return _f32(x[0][0], x[0][2])


def _add_chosen(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    y, rows, ids, shares = x
    _want(len(y) == 2, "one row is added to", "[rows, width]", y)
    _want((len(rows), rows[0], rows[-1]) == (3, *y), "rows do not fit", (y[0], "ranks", y[1]), rows)
    _want(ids == shares == rows[:2], "one id and weight a row and rank", rows[:2], (ids, shares))
    return _f32(*y)


def _outputs(x: Sequence[Shape], w: WeightShapes, a: dict[str, Any]) -> Signatures:
    _want(x[0][0] == TOKENS, "output rows are chosen once", f"[{TOKENS}, ...]", x[0])
    return _f32(OUTPUTS, *x[0][1:])


def _rule(
    inputs: int | tuple[int, int],
    weights: int | tuple[int, int],
    attrs: str,
    shape: ShapeRule,
    meaning: str,
    integers: tuple[int, ...] = (),
    ids: tuple[int, ...] = (),
    integer_weights: tuple[int, ...] = (),
    axes: tuple[int, ...] = (),
    joins_heads: bool = False,
) -> OpRule:
    span = tuple((n, n) if isinstance(n, int) else n for n in (inputs, weights))
    names = frozenset(attrs.split())
    return OpRule(
        *(span[0], span[1], names, shape, meaning, integers, ids, integer_weights),
        axes=axes,
        joins_heads=joins_heads,
    )


OPS: dict[str, OpRule] = {
    "embed": _rule(
        (1, 2),
        1,
        "scale absent",
        _embed,
        "scale * table[tokens[t]]; where tokens[t] is -1, row t of the second input as it is, or "
        "that of token `absent`",
        (0,),
        axes=(2,),
    ),
    "embed_by_position": _rule(
        (2, 3),
        1,
        "n_parts first n_first",
        _embed_by_position,
        "as embed, from one of n_parts parts of the table: part positions[t, 0] - first, or the "
        "nearest one there is; the first has n_first rows (0: as many as each), and a token that "
        "is no row of its part gives zeros; where tokens[t] is -1, row t of the third input",
        (0, 1),
        axes=(2,),
    ),
    "embedding_rows": _rule(
        2,
        0,
        "",
        _embedding_rows,
        "row t of the second input where tokens[t] is -1, else zeros",
        (0,),
    ),
    "embed_positions": _rule(
        1,
        1,
        "",
        _embed_positions,
        "row positions[t, 0] of the table, zeros after its last",
        (0,),
        axes=(2,),
    ),
    "embed_codes": _rule(
        1,
        1,
        "n_first",
        _embed_codes,
        "the sum over i of row codes[t, i] of part i of the table, from zero and in order; the "
        "first part has n_first rows (0: as many as each), and a code that is no row of its part, "
        "as -1, adds nothing",
        (0,),
        axes=(2,),
    ),
    "matmul": _rule(
        1,
        (1, 2),
        "",
        _matmul,
        "w x + bias",
        axes=(2, 1),
    ),
    "matmul_by_position": _rule(
        2,
        1,
        "first",
        _matmul_by_position,
        "w[i] x[t], where i is the row's position on the first axis less first, or the nearest one "
        "that there is",
        (1,),
        axes=(3,),
    ),
    "rms_norm": _rule(
        1,
        (0, 1),
        "eps",
        _rms_norm,
        "w * x / sqrt(mean(x^2) + eps) over the last axis",
        axes=(1,),
    ),
    "layer_norm": _rule(
        1,
        (0, 2),
        "eps",
        _layer_norm,
        "w * (x - mean) / sqrt(var + eps) + b over the last axis",
        axes=(1, 1),
    ),
    "l2_norm": _rule(1, 0, "eps", _same, "x / sqrt(sum(x^2) + eps) over the last axis"),
    "add": _rule(2, 0, "", _same, "a + b"),
    "mul": _rule(2, 0, "", _mul, "a * b; b may have one value for each head of a"),
    "scale": _rule(1, 0, "factor", _same, "factor * x"),
    "clamp": _rule(1, 0, "limit", _clamp, "x, cut to -limit .. limit"),
    "scale_by": _rule(
        1,
        1,
        "",
        _by_weight,
        "w * x, one factor for each value of a row, or of the last axis, or for each head or all",
        axes=(1,),
    ),
    "shift_by": _rule(
        1,
        1,
        "",
        _by_weight,
        "w + x, one term for each value of a row, or of the last axis, or for each head or all",
        axes=(1,),
    ),
    "scale_by_position": _rule(
        2,
        0,
        "beta n offset",
        _scale_by_position,
        "x * (1 + beta log(1 + floor((positions[t, 0] + offset) / n))); beta is rounded to "
        "float32, and so is the factor",
        (1,),
    ),
    "activation": _rule(1, 0, "kind", _activation, "kind(x)"),
    "xielu": _rule(
        1,
        0,
        "alpha_p alpha_n beta eps",
        _xielu,
        "alpha_p x^2 + beta x where x > 0, else alpha_n (exp(min(x, eps)) - 1 - x) + beta x",
    ),
    "gaussian_topk": _rule(
        1,
        0,
        "n_deviations",
        _gaussian_topk,
        "max(0, x - mean - n_deviations * sqrt(mean((x - mean)^2))) over the last axis",
    ),
    "gated": _rule(
        2,
        0,
        "kind limit offset",
        _gated,
        "kind(gate) * (up + offset); where limit is not 0, gate is at most limit, and up is cut to "
        "-limit .. limit, before that",
    ),
    "concat": _rule((2, 8), 0, "", _concat, "join along the last axis"),
    "slice": _rule(1, 0, "start stop", _slice, "x[..., start:stop]"),
    "split_heads": _rule(1, 0, "n_heads", _split_heads, "[T, H * D] seen as [T, H, D]"),
    "merge_heads": _rule(1, 0, "", _merge_heads, "[T, H, D] seen as [T, H * D]"),
    "repeat": _rule(1, 0, "n_heads", _repeat, "[T, 1, D] seen as [T, H, D], every head the same"),
    "rope": _rule(
        2,
        (0, 1),
        "frequencies axes style magnitude",
        _rope,
        "rotate pair i of each head by positions[t, axes[i]] * frequencies[i] (divided by "
        "factor i of the weight), times magnitude; pairs are (i, i + n/2) in style halves, "
        "(2i, 2i + 1) in style pairs",
        (1,),
        axes=(1,),
    ),
    "attention": _rule(
        (1, 3),
        (0, 2),
        "layer scale mask window v_width max_distance softcap max_alibi_bias",
        _attention,
        "store k, v at (seq, place); softmax(score + bias) v over the visible places, the score "
        "being scale q.k, or softcap tanh(scale q.k / softcap) where that is not 0; without "
        "v only k is stored, and the first v_width entries of each of its heads are the value; "
        "without k, what another node stores in the layer, values of v_width; the bias of head h "
        "is w[bucket, h], 0 without w, with the bucket of the key's place less the row's "
        "(graph/buckets.py); where max_alibi_bias is not 0, minus the head's slope times the "
        "places between (graph/alibi.py)",
        axes=(1, 2),
    ),
    "remember": _rule(2, 0, "layer", _remember, "store k, v at (seq, place)"),
    "cross_attention": _rule(
        1,
        0,
        "layer scale n_heads v_width",
        _cross_attention,
        "softmax(scale q.k) v over all that was delivered of the row's sequence",
    ),
    "causal_conv": _rule(
        1,
        1,
        "layer kind",
        _causal_conv,
        "kind(sum over j of w[c, j] * x[t - kernel + 1 + j, c]) of the sequence's rows, zeros "
        "before its first; kind is silu or none",
        axes=(2,),
    ),
    "block_mean": _rule(
        1,
        0,
        "size",
        _block_mean,
        "the mean over the rows of a block; the rows of a sequence in a batch are blocks of size "
        "rows, the last one of those that are left",
    ),
    "block_mix": _rule(
        1,
        1,
        "",
        _block_mix,
        "sum over j <= i of w[i, j, c] * x[j, c] for row i of a block, x[j] being its row j; "
        "blocks are those of block_mean, with as many rows as w is for",
        axes=(3,),
    ),
    "block_conv": _rule(
        2,
        1,
        "size part",
        _block_conv,
        "sum over j <= i of (w[part, j, c] + changes[i, j * groups + c // (channels / groups)]) * "
        "x[i - j, c] for row i of a block, x[i - j] being its row i - j; blocks are those of "
        "block_mean",
        axes=(3,),
    ),
    "keep_best": _rule(
        1,
        0,
        "n",
        _keep_best,
        "x where it is one of the n largest of its row, the first ones among equals, or NaN; -inf "
        "elsewhere",
    ),
    "find_best": _rule(
        1,
        0,
        "n",
        _find_best,
        "the columns of the n largest of a row (the first one among equals, NaN as -inf), best "
        "first, and of each the logarithm of its share in the softmax of the row, and the share",
    ),
    "embed_ids": _rule(
        1,
        1,
        "",
        _embed_ids,
        "w[ids[t, r]]; the ids choose among as many rows as w has",
        (0,),
        (0,),
        axes=(2,),
    ),
    "rank_matmul": _rule(
        1,
        (1, 2),
        "",
        _rank_matmul,
        "w x[t, r] + bias",
        axes=(2, 1),
    ),
    "block_attention": _rule(
        3,
        1,
        "size first scale",
        _block_attention,
        "softmax(scale q.k + bias) v of each candidate over all candidates of its block's rows "
        "from `first` on, zeros where there are none; of head h the bias is w[h, i - j + size - 1] "
        "for candidates of row i and keys of row j; blocks are those of block_mean",
        axes=(2,),
    ),
    "block_walk": _rule(
        4,
        0,
        "size first width",
        _block_walk,
        "for row i of a block the scores before . coming[i, r] at the columns ids[i, r], -inf "
        "elsewhere; before is start[i] for row `first`, and going[i - 1, b] after it, where b has "
        "the largest score of row i - 1 (the first one among equals, NaN as -inf); -inf alone for "
        "rows before `first`; blocks are those of block_mean",
        (0,),
        (0,),
    ),
    "delta_rule": _rule(
        5,
        (0, 1),
        "layer key_heads corrects",
        _delta_rule,
        "for each head of v, with S [Dk, Dv] from the row before: S = exp(decay) S; "
        "d = beta (v - S^T k), or beta v where it does not correct; S = S + k d^T; S^T q. Head h "
        "has k and q of key head h % Hk (tiled) or h // (Hv / Hk) (grouped). With a weight "
        "[Hv Dv, Dk] decays are of entries of v, and entry (i, j) of S has decay[j] weight[j, i]",
        axes=(2,),
    ),
    "route": _rule(
        1,
        (1, 4),
        "n_used gate normalise scale n_groups n_groups_used n_best_of_group",
        _route,
        "expert ids and weights, of w, correction, bias and factors: the n_used best of "
        "gate(w x + bias) + correction (lowest id first "
        "among equals, NaN last) within the n_groups_used groups whose n_best_of_group (1 or 2) "
        "best experts sum highest; weighted by the gate without the correction, divided by (their "
        "sum + 1e-20) if normalise, times scale, times the expert's factor; w x is in floating "
        "point whatever the type of w",
        axes=(2, 1, 1, 1),
    ),
    "expert_matmul": _rule(
        2,
        (1, 2),
        "",
        _expert_matmul,
        "w[ids[t, r]] x[t] (or x[t, r]) + bias[ids[t, r]]; the ids choose among as many experts as "
        "w has",
        (1,),
        (1,),
        axes=(3, 2),
    ),
    "group_ids": _rule(
        1,
        0,
        "n_of_group",
        _group_ids,
        "ids[t, r] // n_of_group, groups of experts that lie side by side; a token may have one "
        "several times",
        (0,),
        (0,),
    ),
    "given_ids": _rule(
        1,
        0,
        "n rows",
        _given_ids,
        "ids[t, r] where that is one of 0 .. n - 1, else n; of all rows, or of those that were "
        "asked for",
        (0,),
    ),
    "pair_ids": _rule(
        2,
        0,
        "column n_first n_second",
        _pair_ids,
        "a * n_second + b for a = first[t, column] and b = second[t, r]; a * n_second alone where "
        "a is the last one, n_first - 1",
        (0, 1),
        (0, 1),
    ),
    "token_ids": _rule(
        2,
        0,
        "n_first n_second absent",
        _token_ids,
        "ids[t, r] * n_second + tokens[t], the row of a table that an id chooses, and where "
        "tokens[t] is -1 that of token `absent`; (n_first - 1) * n_second where there is no token, "
        "or the id is the last one, n_first - 1",
        (0, 1),
        (1,),
    ),
    "scale_chosen": _rule(
        2,
        1,
        "",
        _scale_chosen,
        "w[ids[t, r]] * x[t, r]; the ids choose among as many experts as w has factors",
        (1,),
        (1,),
        axes=(1,),
    ),
    "cluster_matmul": _rule(
        2,
        2,
        "n_clusters",
        _cluster_matmul,
        "w[v] x[t] for the rows v of the clusters ids[t], -inf elsewhere; cluster c has the rows "
        "ordering[c * n .. c * n + n], with n = rows / n_clusters",
        (1,),
        (1,),
        (1,),
        axes=(2, 1),
    ),
    "head_matmul": _rule(
        1,
        1,
        "",
        _head_matmul,
        "w[h] x[t, h] for each head h",
        axes=(3,),
        joins_heads=True,
    ),
    "mix": _rule(2, 0, "", _mix, "sum over r of weights[t, r] * x[t, r], in rank order"),
    "add_chosen": _rule(
        4,
        0,
        "n",
        _add_chosen,
        "y[t] + the sum over r of weights[t, r] * x[t, r], in rank order, of those whose id is one "
        "of 0 .. n - 1; y[t] itself where none is",
        (2,),
        (2,),
    ),
    "outputs": _rule(1, 0, "", _outputs, "the rows that were asked for"),
}
