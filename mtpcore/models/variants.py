"""Decoders that differ from Llama's in points that a table can name.

A family is a ``Variant``: which norms, in which order, which activation, what is rotated, which
numbers multiply what. Its layer, its hyper-parameters and its declaration follow. What a file has
or lacks (biases, norms after a branch or of heads, a fused matrix, experts) is read from the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Literal, Self, TypeAlias, TypeVar

import msgspec

from mtpcore.boundary.sizes import Count, Depth
from mtpcore.declarations.checkpoint import Checkpoint
from mtpcore.declarations.patterns import pattern
from mtpcore.declarations.spec import ATTENTION_SCALES, Builder, Fit, ModelSpec
from mtpcore.gguf import Tensor
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.blocks import (
    OUTPUT_TIE,
    ROPE_FACTORS,
    ROUTER_TYPE,
    apply_rope,
    moe,
    projections,
    relu_squared,
    swiglu,
    weight_rows,
)
from mtpcore.models.hparams import Experts, Hparams
from mtpcore.models.layer_kinds import LayerKind, windowed_blocks
from mtpcore.models.rope import Rope, Style

__all__ = [
    "H",
    "LayerFunction",
    "Limit",
    "QueryGrowth",
    "Variant",
    "VariantHparams",
    "attention",
    "build",
    "embed",
    "feed_forward",
    "layer",
    "norm",
    "outputs",
    "run_layers",
    "variant_spec",
]

Limit = Annotated[float, msgspec.Meta(ge=0)]
"""What values are cut to, 0 for none."""
_GrowthLength = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
_Window = Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]


H = TypeVar("H", bound="VariantHparams")
"""A family's hyper-parameters."""
LayerFunction: TypeAlias = Callable[[GraphBuilder, Value, Value, int, H], Value]
"""A function ``layer(g, x, positions, n, h)`` that adds layer n to the residual stream."""


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """In what a family differs from Llama.

    Attributes
    ----------
    rope_style : str
        ``halves`` or ``pairs``; see ``GraphBuilder.rope``.
    axes_style : str, optional
        The same where a position has several axes, if it is another.
    interleaves_axes : bool
        How sections of a position's axes lie; see ``Rope.read``.
    turns_fourth_axis : bool
        Whether the fourth of them counts.
    rotates : callable, optional
        ``rotates(h, n)`` says whether layer n rotates queries and keys; default: all do, or as
        files say.
    rotates_by : str
        The key by which they say so, of all layers or of each.
    norm : str
        ``rms`` or ``layer``; ``plain_rms`` or ``plain`` without weights.
    attention_norms, ffn_norm : tuple of str, str
        Norms before attention (the first that the file has) and before the feed-forward part. One
        that the file lacks is left out.
    post_norms : tuple of str
        Norms after attention and after the feed-forward part, where the file has them.
    ignored : tuple of str
        Patterns of tensors that files may have and llama.cpp does not compute with.
    norms_rotated : bool
        Whether heads of queries and keys are normed after the rotation.
    head_norm : str
        ``rms`` or ``layer``; a weight as wide as all heads together norms them as one row where the
        norm is ``rms``. ``plain_rms`` is for layers that rotate, and has no weights but maybe a
        factor for each head.
    is_parallel : bool or str
        Whether attention and feed-forward part read the same stream; or the key that says so. A
        part without a norm of its own reads attention's.
    activation : str
        Of the feed-forward part, gated or not; ``relu_squared`` is not gated.
    fuses_gate : bool
        Whether ``ffn_up`` holds the gate's rows before those of up.
    experts_gate : str
        By what experts are chosen where the file does not say.
    normalises : bool, optional
        Whether the weights of a token's experts sum to one; None: as the file says.
    has_windows : callable, optional
        ``f(h)`` says whether windows count; default: where the file has one.
    window_period, window : int, optional
        Of how many layers the last one sees all, where layers have windows (``windowed_blocks``);
        and the window, where the file does not say.
    near_base : float, optional
        The base of the rotation in layers with a window, where the file does not say; default:
        that of the others.
    near_is_scaled : bool
        Whether these layers' rotation is scaled, too.
    is_full_first : bool
        Whether the first layer of a period sees all, and not the last.
    near_heads : bool, optional
        Whether heads have windows, where no list says so (``windowed_blocks``).
    attention_gate : str
        The function of ``attn_gate``'s products that multiplies what attention gives, each value or
        each head, where the file has that matrix.
    embedding_scale, residual_scale, logit_scale : callable, optional
        ``f(h)`` returns what embeddings, each branch or logits are multiplied by where the file has
        no key for it.
    divides_logits : bool
        Whether logits are divided by the key's number.
    score_scale : callable, optional
        ``f(h)`` returns the factor of scores; default: 1 / sqrt(head width).
    clamps : bool
        Whether ``{arch}.attention.clamp_kqv`` cuts queries, keys and values.
    softcaps_scores : float
        The softcap of scores where ``{arch}.attn_logit_softcapping`` does not say; 0: none counts.
    alibi : callable, optional
        ``f(h)`` returns the largest bias of scores by distance (ALiBi; 0: none) where the file does
        not say.
    raises_queries : bool
        Whether ``{arch}.attention.temperature_scale`` counts: queries grow with their position.
        The rotation does not raise scores then, where files have YaRN's multiplier.
    softcaps_logits : bool
        Whether ``{arch}.final_logit_softcapping`` counts.
    scaled : tuple of str
        As in a ``ModelSpec``.
    """

    rope_style: Style = "halves"
    axes_style: Style | None = None
    interleaves_axes: bool = False
    turns_fourth_axis: bool = False
    rotates: Callable[[VariantHparams, int], bool] | None = None
    rotates_by: str = ""
    norm: Literal["rms", "layer", "plain", "plain_rms"] = "rms"
    attention_norms: tuple[str, ...] = ("attn_norm",)
    ffn_norm: str = "ffn_norm"
    post_norms: tuple[str, str] = ("post_attention_norm", "post_ffw_norm")
    ignored: tuple[str, ...] = ()
    norms_rotated: bool = False
    head_norm: Literal["rms", "layer", "plain_rms"] = "rms"
    is_parallel: bool | str = False
    activation: str = "silu"
    fuses_gate: bool = False
    experts_gate: Literal["softmax", "sigmoid"] = "softmax"
    normalises: bool | None = True
    has_windows: Callable[[VariantHparams], bool] | None = None
    window_period: int | None = None
    window: int = 0
    near_base: float = 0.0
    near_is_scaled: bool = True
    is_full_first: bool = False
    near_heads: bool | None = None
    attention_gate: str = "sigmoid"
    embedding_scale: Callable[[VariantHparams], float] | None = None
    residual_scale: Callable[[VariantHparams], float] | None = None
    logit_scale: Callable[[VariantHparams], float] | None = None
    divides_logits: bool = False
    score_scale: Callable[[VariantHparams], float] | None = None
    clamps: bool = False
    softcaps_scores: float = 0.0
    alibi: Callable[[VariantHparams], float] | None = None
    raises_queries: bool = False
    softcaps_logits: bool = False
    scaled: tuple[str, ...] = ATTENTION_SCALES


class QueryGrowth(msgspec.Struct, frozen=True):
    """How queries grow with their position; see ``GraphBuilder.scale_by_position``."""

    beta: float
    n: int
    offset: int = 0


class VariantHparams(Hparams, frozen=True, kw_only=True):
    """Hyper-parameters of such families; ``kinds`` says how each block attends."""

    norm_eps: float = msgspec.field(name="norm_eps", default=0.0)
    variant: Variant = msgspec.field(name="variant", default=Variant())
    kinds: tuple[LayerKind, ...] = ()
    rotated: tuple[bool, ...] = ()
    n_dense_layers: _Window = msgspec.field(name="leading_dense_block_count", default=0)
    experts: Experts | None = None
    is_parallel: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    score_scale: float = 1.0
    softcap: float = 0.0
    clamp: float = 0.0
    score_softcap: float = 0.0
    max_alibi_bias: float = 0.0
    query_growth: tuple[QueryGrowth | None, ...] = ()

    @classmethod
    def read_variant(cls, variant: Variant, fields: Fields, tensors: Mapping[str, Tensor]) -> Self:
        """Read a family's metadata; see ``Hparams.read``."""
        n_heads, n_kv_heads = max(_heads(fields))
        keys = "{arch}.attention.head_count", "{arch}.attention.head_count_kv"
        h = cls._read(
            fields.replace(dict(zip(keys, (n_heads, n_kv_heads), strict=True))),
            tensors,
            variant.rope_style,
            interleaves_axes=variant.interleaves_axes,
            turns_fourth_axis=variant.turns_fourth_axis,
            raises_scores=variant.raises_queries,
        )
        norms = "layer_norm_rms_epsilon" if "rms" in variant.norm else "layer_norm_epsilon"
        parallel = variant.is_parallel
        if isinstance(parallel, str):
            parallel = fields.get(parallel, bool, False)
        fields.dismiss("{arch}.attention.layer_norm_rms_epsilon")
        h = msgspec.structs.replace(h, rope=_rope(h.rope, variant))
        h = msgspec.structs.replace(
            h,
            variant=variant,
            norm_eps=fields.require(f"{{arch}}.attention.{norms}", float),
            kinds=_layer_kinds(fields, h, variant),
            rotated=_rotated(fields, h, variant),
            query_growth=(_query_growth(fields, h, variant),) * h.n_blocks,
            experts=_experts(fields, variant),
            is_parallel=parallel,
        )
        return msgspec.structs.replace(h, **_factors(fields, h, variant))


def _rope(rope: Rope, v: Variant) -> Rope:
    style = v.axes_style if v.axes_style and rope.n_axes > 1 else rope.style
    return msgspec.structs.replace(rope, style=style)


def _experts(fields: Fields, v: Variant) -> Experts | None:
    experts = Experts.read(fields, gate=v.experts_gate)
    if experts is None or v.normalises is None:
        return experts
    return msgspec.structs.replace(experts, normalise=v.normalises)


def _factors(fields: Fields, h: VariantHparams, v: Variant) -> dict[str, float]:
    """Return what is multiplied by what, by the names of fields."""

    def read(key: str, default: Callable[[VariantHparams], float] | None) -> float:
        if default is None:
            return 1.0
        return fields.get(f"{{arch}}.{key}", float, default(h))

    logits = read("logit_scale", v.logit_scale)
    return {
        "embedding_scale": read("embedding_scale", v.embedding_scale),
        "residual_scale": read("residual_scale", v.residual_scale),
        "logit_scale": 1.0 / logits if v.divides_logits else logits,
        "score_scale": read("attention.scale", v.score_scale or _plain_scale),
        "score_softcap": fields.get("{arch}.attn_logit_softcapping", Limit, v.softcaps_scores)
        if v.softcaps_scores
        else 0.0,
        "max_alibi_bias": _alibi(fields, h, v),
        "clamp": fields.get("{arch}.attention.clamp_kqv", Limit, 0.0) if v.clamps else 0.0,
        "softcap": fields.get("{arch}.final_logit_softcapping", float, 0.0)
        if v.softcaps_logits
        else 0.0,
    }


def _alibi(fields: Fields, h: VariantHparams, v: Variant) -> float:
    if v.alibi is None:
        return 0.0
    said: float = fields.get("{arch}.attention.max_alibi_bias", Limit, 0.0)
    return said or v.alibi(h)


def _query_growth(fields: Fields, h: VariantHparams, v: Variant) -> QueryGrowth | None:
    beta = fields.get("{arch}.attention.temperature_scale", float, 0.0) if v.raises_queries else 0
    if not beta:
        return None
    fields.dismiss("{arch}.attention.temperature_length")
    n = fields.get("{arch}.rope.scaling.original_context_length", _GrowthLength, h.n_ctx_train)
    return QueryGrowth(beta, n)


def _plain_scale(h: VariantHparams) -> float:
    return 1 / math.sqrt(h.head_width)


def _layer_kinds(fields: Fields, h: VariantHparams, v: Variant) -> tuple[LayerKind, ...]:
    """Return how each block attends: some with a window, and a rotation of their own."""
    window = near_rope = None
    pattern = [False] * h.n_blocks
    if v.window_period is not None:
        window = fields.get("{arch}.attention.sliding_window", _Window, v.window)
        pattern = windowed_blocks(
            fields, h.n_blocks, v.window_period, v.is_full_first, v.near_heads
        )
    if window and (v.has_windows is None or v.has_windows(h)):
        near_rope = _near_rope(fields, h, v)
    else:
        fields.dismiss("{arch}.rope.freq_base_swa")
    kinds = []
    for (n_heads, n_kv_heads), is_near in zip(_heads(fields), pattern, strict=True):
        kind = LayerKind(n_kv_heads, h.rope, n_heads=n_heads)
        if is_near and near_rope is not None:
            kind = msgspec.structs.replace(kind, rope=near_rope, window=window)
        kinds.append(kind)
    return tuple(kinds)


def _rotated(fields: Fields, h: VariantHparams, v: Variant) -> tuple[bool, ...]:
    if not v.rotates_by:
        return (True,) * h.n_blocks
    return tuple(fields.per_layer(v.rotates_by, h.n_blocks, bool, True))


def _near_rope(fields: Fields, h: VariantHparams, v: Variant) -> Rope:
    """Return the rotation of layers with a window."""
    base = v.near_base or fields.get("{arch}.rope.freq_base", float, 10000.0)
    base = fields.get("{arch}.rope.freq_base_swa", float, base)
    has_width = "{arch}.rope.dimension_count_swa" in fields
    return Rope.read(
        fields.replace({"{arch}.rope.freq_base_swa": base}),
        h.head_width,
        v.rope_style,
        "freq_base_swa",
        width_key="dimension_count_swa" if has_width else "dimension_count",
        scaled=v.near_is_scaled,
    )


def _heads(fields: Fields) -> list[tuple[int, int]]:
    """Return how many query heads and key heads each block has."""
    n_blocks = fields.require("{arch}.block_count", Depth)
    keys = "{arch}.attention.head_count", "{arch}.attention.head_count_kv"
    n_heads = fields.per_layer(keys[0], n_blocks, Count)
    n_kv_heads = fields.per_layer(keys[1], n_blocks, Count) if keys[1] in fields else n_heads
    for n, (count, kv_count) in enumerate(zip(n_heads, n_kv_heads, strict=True)):
        if count % kv_count:
            raise fields.error(
                keys[1],
                f"the query heads of block {n} do not share its key heads evenly",
                wanted=f"a divisor of {count}",
                got=kv_count,
            )
    return list(zip(n_heads, n_kv_heads, strict=True))


def _ignores(h: VariantHparams, name: str) -> bool:
    return any(pattern(one).fullmatch(name) for one in h.variant.ignored)


def _bias(of: str, h: VariantHparams) -> str | None:
    """Return the name of a matrix's bias, unless it is ignored."""
    name = f"{of}.bias"
    return None if _ignores(h, name) else name


def _found(g: GraphBuilder, name: str) -> str | None:
    """Return the name of a norm's weight, which a few files spell without ``.weight``."""
    return next((full for full in (f"{name}.weight", name) if g.has(full)), None)


def norm(g: GraphBuilder, x: Value, name: str, h: VariantHparams) -> Value:
    """Return normed rows; ``name`` without ``.weight``."""
    if h.variant.norm == "plain":
        return g.layer_norm(x, None, None, h.norm_eps)
    if h.variant.norm == "plain_rms":
        return g.rms_norm(x, None, h.norm_eps)
    weight = _found(g, name)
    if weight is None:
        return x
    bias = f"{name}.bias" if g.has(f"{name}.bias") else None
    if h.variant.norm == "layer":
        return g.layer_norm(x, weight, bias, h.norm_eps)
    x = g.rms_norm(x, weight, h.norm_eps)
    return g.shift_by(x, bias) if bias else x


def _head_norm(g: GraphBuilder, x: Value, name: str, n_heads: int, h: VariantHparams) -> Value:
    """Return heads [T, H, D] of rows [T, H * D], normed where the file has the weight."""
    heads = g.split_heads(x, n_heads)
    weight = f"{name}.weight"
    found = None if _ignores(h, weight) else g.resolve(weight)
    if h.variant.head_norm == "plain_rms":
        heads = g.rms_norm(heads, None, h.norm_eps)
        return heads if found is None else g.mul(heads, weight_rows(g, heads, weight))
    if found is None:
        return heads
    if h.variant.head_norm == "layer":  # a weight for each head
        heads = g.layer_norm(heads, None, None, h.norm_eps)
        return g.scale_by(heads, weight)
    if len(found.shape) == 2:
        return g.scale_by(g.rms_norm(heads, None, h.norm_eps), weight)
    if found.shape[-1] == h.head_width:
        heads = g.rms_norm(heads, weight, h.norm_eps)
        bias = f"{name}.bias"
        return g.shift_by(heads, bias) if g.has(bias) else heads
    return g.split_heads(g.rms_norm(x, weight, h.norm_eps), n_heads)


def attention(
    g: GraphBuilder,
    a: Value,
    positions: Value,
    n: int,
    h: VariantHparams,
    *,
    memory: int | None = None,
) -> Value:
    """Return what attention of block n makes of normed rows.

    ``memory`` is the number of its memory layer, where it is not the block's.
    """
    v, kind, block = h.variant, h.kinds[n], f"blk.{n}"
    width = h.head_width
    parts = projections(g, a, n, kind.n_heads * width, kind.n_kv_heads * width)
    q, k, values = (g.clamp(part, h.clamp) for part in parts) if h.clamp else parts
    rotates = v.rotates(h, n) if v.rotates else h.rotated[n]
    factors = None if ROPE_FACTORS in v.ignored else ROPE_FACTORS

    def rotated(heads: Value) -> Value:
        return apply_rope(g, heads, positions, kind.rope, factors) if rotates else heads

    def finished(rows: Value, name: str, n_heads: int) -> Value:
        if not rotates and v.head_norm == "plain_rms":
            return g.split_heads(rows, n_heads)
        if not v.norms_rotated:
            return rotated(_head_norm(g, rows, f"{block}.{name}", n_heads, h))
        heads = rotated(g.split_heads(rows, n_heads))
        return _head_norm(g, g.merge_heads(heads), f"{block}.{name}", n_heads, h)

    sinks, output = f"{block}.attn_sinks.weight", f"{block}.attn_output"
    queries, growth = finished(q, "attn_q_norm", kind.n_heads), h.query_growth[n]
    if growth is not None:
        queries = g.scale_by_position(queries, positions, **msgspec.structs.asdict(growth))
    y = g.attention(
        queries,
        finished(k, "attn_k_norm", kind.n_kv_heads),
        g.split_heads(values, kind.n_kv_heads),
        layer=n if memory is None else memory,
        scale=h.score_scale,
        window=kind.window,
        sinks=sinks if g.has(sinks) else None,
        softcap=h.score_softcap,
        max_alibi_bias=h.max_alibi_bias,
    )
    y = _gate(g, y, a, f"{block}.attn_gate.weight", v.attention_gate)
    return g.matmul(y, f"{output}.weight", _bias(output, h))


def _gate(g: GraphBuilder, y: Value, a: Value, weight: str, kind: str) -> Value:
    """Return rows of what attention gives, gated by what a matrix makes of its input."""
    if not g.has(weight):
        return g.merge_heads(y)
    gate = g.activation(g.matmul(a, weight), kind)
    if gate.shape[1] == y.shape[1]:  # one value a head
        return g.merge_heads(g.mul(y, gate))
    return g.mul(g.merge_heads(y), gate)


def feed_forward(g: GraphBuilder, x: Value, n: int, h: VariantHparams) -> Value:
    """Return what the feed-forward part makes of normed rows."""
    block, kind = f"blk.{n}", h.variant.activation
    if h.experts is not None and g.has(f"{block}.ffn_gate_inp.weight"):
        return moe(g, x, n, h.experts, gated=partial(g.gated, kind=kind))
    if g.has(f"{block}.ffn_gate.weight"):
        return swiglu(g, x, n, kind=kind)
    up = g.matmul(x, f"{block}.ffn_up.weight", f"{block}.ffn_up.bias", scales_bias=True)
    if h.variant.fuses_gate:
        width = int(up.shape[-1]) // 2
        y = g.gated(g.slice(up, 0, width), g.slice(up, width, 2 * width), kind)
    elif kind == "relu_squared":
        y = relu_squared(g, up)
    else:
        y = g.activation(up, kind)
    return g.matmul(y, f"{block}.ffn_down.weight", f"{block}.ffn_down.bias", scales_bias=True)


def layer(
    g: GraphBuilder,
    x: Value,
    positions: Value,
    n: int,
    h: H,
    *,
    mixer: LayerFunction[H] = attention,
) -> Value:
    """Add attention and feed-forward of layer n to the residual stream.

    ``mixer(g, a, positions, n, h)`` returns what stands in place of attention, of normed rows.
    """
    v, block = h.variant, f"blk.{n}"
    present = [name for name in v.attention_norms if g.has(f"{block}.{name}.weight")]
    attention_norm = (*present, v.attention_norms[-1])[0]
    a = norm(g, x, f"{block}.{attention_norm}", h)

    def branch(y: Value, post_norm: str) -> Value:
        if _found(g, f"{block}.{post_norm}"):
            y = norm(g, y, f"{block}.{post_norm}", h)
        return y if h.residual_scale == 1 else g.scale(y, h.residual_scale)

    attended = branch(mixer(g, a, positions, n, h), v.post_norms[0])
    if h.is_parallel:
        own = g.has(f"{block}.{v.ffn_norm}.weight") and v.ffn_norm != attention_norm
        b = norm(g, x, f"{block}.{v.ffn_norm}", h) if own else a
        return g.add(g.add(branch(feed_forward(g, b, n, h), v.post_norms[1]), x), attended)
    x = g.add(x, attended)
    b = norm(g, x, f"{block}.{v.ffn_norm}", h)
    return g.add(x, branch(feed_forward(g, b, n, h), v.post_norms[1]))


def build(g: GraphBuilder, inputs: Inputs, h: H, *, layer: LayerFunction[H] = layer) -> Outputs:
    """Build the trunk, of the family's own layers where it has some."""
    return outputs(g, run_layers(g, embed(g, inputs, h), inputs, h, layer), h)


def embed(g: GraphBuilder, inputs: Inputs, h: VariantHparams) -> Value:
    """Return the rows that enter the first layer."""
    x = g.embed(inputs.tokens, "token_embd.weight", embeddings=True, scale=h.embedding_scale)
    if g.has("position_embd.weight"):
        x = g.add(x, g.embed_positions(inputs.positions, "position_embd.weight"))
    return norm(g, x, "token_embd_norm", h) if g.has("token_embd_norm.weight") else x


def run_layers(g: GraphBuilder, x: Value, inputs: Inputs, h: H, layer: LayerFunction[H]) -> Value:
    """Return the residual stream after all layers; each one's input can be tapped."""
    for n in range(h.n_layers):
        x = layer(g, g.tap(f"layer_input:{n}", x), inputs.positions, n, h)
    return g.tap(f"layer_input:{h.n_layers}", x)


def outputs(g: GraphBuilder, x: Value, h: VariantHparams) -> Outputs:
    """Return logits of the output rows, and offer the last states."""
    g.tap("residual", x)
    hidden = g.tap("hidden", norm(g, x, "output_norm", h))
    logits = g.matmul(g.output_rows(hidden), "output.weight", _bias("output", h))
    if h.logit_scale != 1:
        logits = g.scale(logits, h.logit_scale)
    if h.softcap:
        logits = g.scale(logits, 1 / h.softcap)
        logits = g.scale(g.activation(logits, "tanh"), h.softcap)
    return Outputs(logits=logits)


def variant_spec(
    name: str,
    variant: Variant,
    *,
    architectures: tuple[str, ...] = (),
    also: tuple[str, ...] = (),
    hparams: type[VariantHparams] = VariantHparams,
    build: Builder = build,
    adapt: Callable[[Fields], Fields] | None = None,
    min_types: tuple[tuple[str, str], ...] = (),
    unread: tuple[tuple[str, str], ...] = (),
    checkpoint: Checkpoint | None = None,
    layouts: tuple[Checkpoint, ...] = (),
) -> ModelSpec:
    """Return the declaration of such a family.

    Parameters
    ----------
    name : str
    variant : Variant
    architectures : tuple of str
        As files call it; default: the name.
    also : tuple of str
        Tensors that every file has.
    hparams : type
        Its hyper-parameters, where it has further ones.
    build : callable
        Its graph, where the layers are not those of ``layer``.
    adapt : callable, optional
        ``f(fields)`` returns the metadata as other families' files have it.
    min_types : tuple of (str, str)
        As in a ``ModelSpec``, beside that of routers.
    unread, checkpoint, layouts
        As in a ``ModelSpec``.
    """
    norms = () if variant.norm.startswith("plain") else ("output_norm.weight",)

    def read(fields: Fields, tensors: Mapping[str, Tensor]) -> VariantHparams:
        return hparams.read_variant(variant, adapt(fields) if adapt else fields, tensors)

    return ModelSpec(
        name=name,
        fit=Fit(
            architectures=frozenset(architectures or (name,)),
            tensors=("token_embd.weight", *norms, *also),
        ),
        hparams=read,
        build=build,
        ties=(OUTPUT_TIE,),
        min_types=(ROUTER_TYPE, *min_types),
        scaled=variant.scaled,
        unread=(*unread, *((one, "llama.cpp does not compute with it") for one in variant.ignored)),
        checkpoint=checkpoint,
        layouts=layouts,
    )
