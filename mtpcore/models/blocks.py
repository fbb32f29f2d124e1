"""Blocks that trunks and heads share; plugins get them from ``mtpcore.plugin``.

Tensor names follow GGUF: a layer's weights are ``blk.{layer}.<name>.weight``. What a file leaves
out (biases, q/k norms, a shared expert) is left out of the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mtpcore.declarations.spec import Tie, first_of
from mtpcore.graph import GraphBuilder, Outputs, Value
from mtpcore.models.hparams import Experts, Hparams
from mtpcore.models.layer_kinds import LayerKind
from mtpcore.models.rope import Rope

__all__ = [
    "OUTPUT_TIE",
    "ROPE_FACTORS",
    "ROUTER_TYPE",
    "attention",
    "attention_block",
    "feed_forward",
    "feed_forward_block",
    "fused_projections",
    "moe",
    "projections",
    "relu_squared",
    "remember",
    "swiglu",
    "trunk_outputs",
    "apply_rope",
    "weight_rows",
]

OUTPUT_TIE: Tie = first_of("output.weight", "token_embd.weight")
"""The output matrix is the embedding table where a file has none."""

ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of rotary frequencies, or what stands for those of LongRoPE."""

_LONG_FACTORS, _SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"

ROUTER_TYPE: tuple[str, str] = ("blk.{n}.ffn_gate_inp.weight", "F32")
"""Routers stay exact: a small error there changes which experts a token meets."""


def attention_block(
    g: GraphBuilder,
    x: Value,
    positions: Value,
    layer: int,
    h: Hparams,
    *,
    kind: LayerKind | None = None,
    mask: str = "causal",
    sinks: str | None = None,
    factors: str | None = None,
) -> Value:
    """Return what attention adds to the residual stream: norm, project, rotate, attend, project.

    Parameters
    ----------
    x : Value
        f32[n_tokens, width], the residual stream.
    layer : int
        Number of the block, and of its memory layer.
    kind : LayerKind, optional
        The block's key heads, rotation and window, where blocks differ; values may then be
        narrower than keys.
    mask : str
        What a token sees: ``causal`` or ``block``; see ``GraphBuilder.attention``.
    sinks : str, optional
        Tensor of one more score for each head, with a value of zeros; used if the file has it.
    factors : str, optional
        Tensor by which rotary frequencies are divided; used if the file has it.

    Returns
    -------
    Value
        f32[n_tokens, width]
    """
    a = g.rms_norm(x, f"blk.{layer}.attn_norm.weight", h.norm_eps)
    return attention(g, a, positions, layer, h, kind=kind, mask=mask, sinks=sinks, factors=factors)


def attention(
    g: GraphBuilder,
    a: Value,
    positions: Value,
    layer: int,
    h: Hparams,
    *,
    kind: LayerKind | None = None,
    mask: str = "causal",
    sinks: str | None = None,
    factors: str | None = None,
) -> Value:
    """Return what attention adds to the residual stream: ``attention_block`` without its norm.

    Parameters
    ----------
    a : Value
        f32[n_tokens, inputs], as wide as q, k and v read; a head's may be wider than its output.
    positions, layer, h, kind, mask, sinks, factors
        As ``attention_block``.

    Returns
    -------
    Value
        f32[n_tokens, width]
    """
    kind = kind or LayerKind(h.n_kv_heads, h.rope)
    width = kind.head_width or h.head_width
    q, k, v = _project(g, a, layer, h.n_heads, kind.n_kv_heads, width)
    q = _norm_and_rotate(g, q, positions, f"blk.{layer}.attn_q_norm.weight", h, kind, factors)
    k = _norm_and_rotate(g, k, positions, f"blk.{layer}.attn_k_norm.weight", h, kind, factors)
    y = g.attention(
        q,
        k,
        v,
        layer=layer,
        scale=width**-0.5,
        mask=mask,
        window=kind.window,
        sinks=sinks if sinks and g.has(sinks) else None,
    )
    return g.matmul(
        g.merge_heads(y), f"blk.{layer}.attn_output.weight", f"blk.{layer}.attn_output.bias"
    )


def remember(
    g: GraphBuilder,
    a: Value,
    positions: Value,
    layer: int,
    h: Hparams,
    *,
    kind: LayerKind | None = None,
    factors: str | None = None,
) -> None:
    """Store the keys and values that ``attention`` would make of these rows, and nothing else.

    Parameters
    ----------
    a : Value
        f32[n_tokens, inputs], as wide as k and v read.
    positions, layer, h, kind, factors
        As ``attention_block``.
    """
    kind = kind or LayerKind(h.n_kv_heads, h.rope)
    k, v = (
        g.split_heads(
            g.matmul(a, f"blk.{layer}.{name}.weight", f"blk.{layer}.{name}.bias"), kind.n_kv_heads
        )
        for name in ("attn_k", "attn_v")
    )
    k = _norm_and_rotate(g, k, positions, f"blk.{layer}.attn_k_norm.weight", h, kind, factors)
    g.remember(k, v, layer=layer, window=kind.window)


def _norm_and_rotate(
    g: GraphBuilder,
    x: Value,
    positions: Value,
    norm: str,
    h: Hparams,
    kind: LayerKind,
    factors: str | None,
) -> Value:
    """Return the heads of queries or keys, normed if the file has the weight, and rotated."""
    if g.has(norm):
        x = g.rms_norm(x, norm, h.norm_eps)
    return apply_rope(g, x, positions, kind.rope, factors)


def _project(
    g: GraphBuilder, a: Value, layer: int, n_heads: int, n_kv_heads: int, width: int
) -> tuple[Value, Value, Value]:
    """Return q, k and v as heads."""
    q, k, v = projections(g, a, layer, n_heads * width, n_kv_heads * width)
    return g.split_heads(q, n_heads), g.split_heads(k, n_kv_heads), g.split_heads(v, n_kv_heads)


def projections(
    g: GraphBuilder, a: Value, layer: int, q_width: int, k_width: int
) -> tuple[Value, Value, Value]:
    """Return rows of queries, keys and values that a layer's matrices make of rows ``a``.

    There are three matrices or a fused one, which ``q_width`` and ``k_width`` cut; biases, where
    the file has them, may be three in either case.
    """

    def biased(name: str, rows: Value) -> Value:
        bias = f"blk.{layer}.{name}.bias"
        return g.shift_by(rows, bias) if g.has(bias) else rows

    def matmul(name: str) -> Value:
        return g.matmul(a, f"blk.{layer}.{name}.weight", f"blk.{layer}.{name}.bias")

    names = "attn_q", "attn_k", "attn_v"
    fused = fused_projections(g, a, layer, q_width, k_width)
    q, k, v = map(matmul, names) if fused is None else map(biased, names, fused)
    return q, k, v


def fused_projections(
    g: GraphBuilder, a: Value, layer: int, q_width: int, k_width: int
) -> tuple[Value, Value, Value] | None:
    """Return rows of queries, keys and values that one matrix, ``attn_qkv``, makes of rows ``a``.

    What is left after ``q_width`` and ``k_width`` are the values. None where the layer has no such
    matrix.
    """
    name = f"blk.{layer}.attn_qkv"
    if not g.has(f"{name}.weight"):
        return None
    rows = g.matmul(a, f"{name}.weight", f"{name}.bias")
    v_begins = q_width + k_width
    return (
        g.slice(rows, 0, q_width),
        g.slice(rows, q_width, v_begins),
        g.slice(rows, v_begins, int(rows.shape[1])),
    )


def apply_rope(
    g: GraphBuilder, x: Value, positions: Value, rope: Rope, factors: str | None = None
) -> Value:
    """Rotate heads by their positions as ``rope`` says.

    ``factors`` names a tensor of divisors. Where the file has others in place of ``ROPE_FACTORS``,
    those for a context as long as the graph's, or for a shorter one (Ding et al., LongRoPE, 2024).
    """
    if factors == ROPE_FACTORS and not g.has(factors):
        factors = _LONG_FACTORS if g.is_long else _SHORT_FACTORS
    return g.rope(
        x,
        positions,
        rope.frequencies,
        style=rope.style,
        axes=rope.axes,
        magnitude=rope.magnitude,
        factors=factors if factors and g.has(factors) else None,
    )


def swiglu(
    g: GraphBuilder,
    x: Value,
    layer: int,
    suffix: str = "",
    *,
    kind: str = "silu",
    gated: Callable[[Value, Value], Value] | None = None,
) -> Value:
    """Return down(silu(gate x) * up x); tensors ``ffn_gate<suffix>`` and so on.

    ``kind`` is the activation, where it is another one than SiLU, and ``gated(gate, up)`` what
    takes the place of the product, if anything.
    """
    gated = gated or partial(g.gated, kind=kind)

    def matmul(rows: Value, name: str) -> Value:
        name = f"blk.{layer}.{name}{suffix}"
        # As llama.cpp has it; a file of NVFP4 has no biases there.
        return g.matmul(rows, f"{name}.weight", f"{name}.bias", scales_bias=True)

    return matmul(gated(matmul(x, "ffn_gate"), matmul(x, "ffn_up")), "ffn_down")


def weight_rows(g: GraphBuilder, heads: Value, weight: str) -> Value:
    """Return a weight of one value a head, [H], in each row of heads: [T, H]."""
    nothing = g.scale(g.slice(g.merge_heads(heads), 0, int(heads.shape[1])), 0.0)
    return g.shift_by(nothing, weight)


def relu_squared(g: GraphBuilder, x: Value) -> Value:
    """Return the square of what is above 0, the activation of parts without a gate."""
    y = g.activation(x, "relu")
    return g.mul(y, y)


def moe(
    g: GraphBuilder,
    x: Value,
    layer: int,
    experts: Experts,
    *,
    routed: Value | None = None,
    gated: Callable[[Value, Value], Value] | None = None,
    shared_gated: Callable[[Value, Value], Value] | None = None,
    ungated: Callable[[Value], Value] | None = None,
    beside: Callable[[Value, Value], Value] | None = None,
    has_shared: bool = True,
) -> Value:
    """Return the weighted sum of the chosen experts' SwiGLU, plus the shared expert's if any.

    Tensors: ``ffn_gate_inp`` (router), ``exp_probs_b.bias`` (correction, optional),
    ``ffn_{gate,up,down}_exps`` or ``ffn_gate_up_exps``, ``ffn_{gate,up,down}_shexp``, and
    ``ffn_gate_inp_shexp``, whose sigmoid is the shared expert's weight (without it, 1). Router and
    experts have a bias, and ``ffn_down_exps.scale`` multiplies the experts' weights, where the
    file has them.

    Parameters
    ----------
    routed : Value, optional
        f32[n_tokens, width], the rows that the router reads, where it does not read x.
    gated, shared_gated : callable, optional
        ``gated(gate, up)``, where experts, or the shared one, have another activation than
        SwiGLU's.
    ungated : callable, optional
        ``ungated(up)``, of experts that have no gate.
    beside : callable, optional
        ``beside(ids, shares)``, of the chosen experts and their weights: what is added to the sum.
    has_shared : bool
        Whether a shared expert in the file is one of these; else it reads other rows.
    """
    block, down = f"blk.{layer}", f"blk.{layer}.ffn_down_exps"
    gated = gated or g.gated
    # Before the chosen experts, so that what mixes these may add it.
    has_shared = has_shared and g.has(f"{block}.ffn_gate_shexp.weight")
    shared = _shared_expert(g, x, layer, shared_gated) if has_shared else None

    def multiply(rows: Value, name: str) -> Value:
        name = f"{block}.{name}"
        y, scale = g.expert_matmul(rows, ids, f"{name}.weight", f"{name}.bias"), scale_of(name)
        return y if scale is None or name == down else g.scale_chosen(y, ids, scale)

    def scale_of(name: str) -> str | None:
        # A bias would be scaled, too: such a scale is left, and refused as one that nobody reads.
        return None if g.has(f"{name}.bias") else g.scale_of(f"{name}.weight")

    ids, shares = g.route(
        x if routed is None else routed,
        f"{block}.ffn_gate_inp.weight",
        next(filter(g.has, (f"{block}.exp_probs_b.bias", f"{block}.exp_probs_b")), None),
        bias=f"{block}.ffn_gate_inp.bias",
        factors=scale_of(down),
        n_used=experts.n_used,
        gate=experts.gate,
        normalise=experts.normalise,
        scale=experts.scale,
        n_groups=experts.n_groups,
        n_groups_used=experts.n_groups_used,
        n_best_of_group=experts.n_best_of_group,
    )
    if g.has(f"{block}.ffn_gate_up_exps.weight"):
        fused = multiply(x, "ffn_gate_up_exps")
        width = int(fused.shape[2]) // 2
        inner = gated(g.slice(fused, 0, width), g.slice(fused, width, 2 * width))
    elif ungated is not None:
        inner = ungated(multiply(x, "ffn_up_exps"))
    else:
        inner = gated(multiply(x, "ffn_gate_exps"), multiply(x, "ffn_up_exps"))
    y = g.mix(multiply(inner, "ffn_down_exps"), shares)
    if beside is not None:
        y = g.add(y, beside(ids, shares))
    return y if shared is None else g.add(y, shared)


def _shared_expert(
    g: GraphBuilder, x: Value, layer: int, gated: Callable[[Value, Value], Value] | None
) -> Value:
    """Return the SwiGLU of a block's shared expert, times its share where it has one."""
    y, share = swiglu(g, x, layer, "_shexp", gated=gated), f"blk.{layer}.ffn_gate_inp_shexp.weight"
    if g.has(share):
        y = g.mix(g.split_heads(y, 1), g.activation(g.matmul(x, share), "sigmoid"))
    return y


def feed_forward(g: GraphBuilder, x: Value, layer: int, experts: Experts | None) -> Value:
    """Return a block's feed-forward output: experts' if it has a router, else dense SwiGLU's."""
    if experts is not None and g.has(f"blk.{layer}.ffn_gate_inp.weight"):
        return moe(g, x, layer, experts)
    return swiglu(g, x, layer)


def feed_forward_block(
    g: GraphBuilder,
    x: Value,
    layer: int,
    h: Hparams,
    experts: Experts | None = None,
    *,
    norm: str = "ffn_norm",
) -> Value:
    """Return what the feed-forward part adds to the residual stream, norm included.

    ``norm`` names the norm's weight in the block; ``experts`` and the rest are as in
    ``feed_forward``.
    """
    f = g.rms_norm(x, f"blk.{layer}.{norm}.weight", h.norm_eps)
    return feed_forward(g, f, layer, experts)


def trunk_outputs(g: GraphBuilder, x: Value, h: Hparams) -> Outputs:
    """Offer ``residual`` and ``hidden``, and return logits of the output rows."""
    g.tap("residual", x)
    hidden = g.tap("hidden", g.rms_norm(x, "output_norm.weight", h.norm_eps))
    return Outputs(logits=g.matmul(g.output_rows(hidden), "output.weight", "output.bias"))
