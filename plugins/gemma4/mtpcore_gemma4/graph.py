"""The trunk of Gemma 4, dense, with experts, and with embeddings for each layer.

Gemma 3n shares its attention, its embeddings for each layer and the way to its logits.
"""

from mtpcore.plugin import (
    GraphBuilder,
    Inputs,
    Outputs,
    Value,
    apply_rope,
    fused_projections,
    moe,
    swiglu,
)
from mtpcore_gemma4.hparams import GemmaHparams

GELU = "gelu_tanh"


def queries(g: GraphBuilder, rows: Value, positions: Value, n: int, h: GemmaHparams) -> Value:
    """Return the rotated queries of layer n, of what its matrix makes of normed rows."""
    q = g.rms_norm(g.split_heads(rows, h.n_heads), f"blk.{n}.attn_q_norm.weight", h.norm_eps)
    return rotate(g, q, positions, n, h)


def rotate(g: GraphBuilder, x: Value, positions: Value, n: int, h: GemmaHparams) -> Value:
    """Rotate heads of layer n; those of layers that see all have divisors in the file."""
    kind = h.kinds[n]
    return apply_rope(g, x, positions, kind.rope, None if kind.window else "rope_freqs.weight")


def attention(g: GraphBuilder, a: Value, positions: Value, n: int, h: GemmaHparams) -> Value:
    """Return what attention of layer n makes of normed rows; values without a matrix are keys'.

    One matrix may make queries, keys and values, also where a layer stores no keys and values.
    """
    kind, stored = h.kinds[n], h.stored_by(n)
    q_width, k_width = h.n_heads * kind.head_width, kind.n_kv_heads * kind.head_width
    fused = fused_projections(g, a, n, q_width, k_width)

    def matmul(name: str) -> Value:
        return g.matmul(a, f"blk.{n}.{name}.weight")

    q = queries(g, fused[0] if fused else matmul("attn_q"), positions, n, h)
    mask = "spans" if h.spans and kind.window else "causal"
    if stored != n:
        y = g.attend(q, layer=stored, scale=1.0, mask=mask, window=kind.window)
    else:
        if fused:
            _, rows, values = fused
        else:
            rows = matmul("attn_k")
            values = matmul("attn_v") if g.has(f"blk.{n}.attn_v.weight") else rows
        k = g.split_heads(rows, kind.n_kv_heads)
        k = g.rms_norm(k, f"blk.{n}.attn_k_norm.weight", h.norm_eps)
        v = g.rms_norm(g.split_heads(values, kind.n_kv_heads), None, h.norm_eps)
        k = rotate(g, k, positions, n, h)
        y = g.attention(q, k, v, layer=n, scale=1.0, mask=mask, window=kind.window)
    return g.matmul(g.merge_heads(y), f"blk.{n}.attn_output.weight")


def feed_forward(g: GraphBuilder, x: Value, n: int, h: GemmaHparams) -> Value:
    """Return what layer n's feed-forward part makes of the residual stream, experts' included."""
    block = f"blk.{n}"
    f = g.rms_norm(x, f"{block}.ffn_norm.weight", h.norm_eps)
    y = swiglu(g, f, n, kind=GELU)
    if h.experts is None:
        return y
    y = g.rms_norm(y, f"{block}.post_ffw_norm_1.weight", h.norm_eps)
    routed = g.scale_by(g.rms_norm(x, None, h.norm_eps), f"{block}.ffn_gate_inp.scale")
    m = moe(
        g,
        g.rms_norm(x, f"{block}.pre_ffw_norm_2.weight", h.norm_eps),
        n,
        h.experts,
        routed=g.scale(routed, h.width**-0.5),
        gated=lambda gate, up: g.gated(gate, up, GELU),
    )
    return g.add(y, g.rms_norm(m, f"{block}.post_ffw_norm_2.weight", h.norm_eps))


def layer(
    g: GraphBuilder, x: Value, positions: Value, n: int, h: GemmaHparams, own: Value | None = None
) -> Value:
    """Add what layer n makes of the residual stream, and scale the sum.

    ``own`` f32[n_tokens, width_by_layer] is the embedding that the layer has of each token.
    """
    block = f"blk.{n}"

    def normed(y: Value, name: str) -> Value:
        return g.rms_norm(y, f"{block}.{name}.weight", h.norm_eps)

    y = attention(g, normed(x, "attn_norm"), positions, n, h)
    x = g.add(x, normed(y, "post_attention_norm"))
    x = g.add(x, normed(feed_forward(g, x, n, h), "post_ffw_norm"))
    if own is not None:
        x = g.add(x, from_own_embedding(g, x, own, n, h))
    if g.has(f"{block}.layer_output_scale.weight"):
        x = g.scale_by(x, f"{block}.layer_output_scale.weight")
    return x


def from_own_embedding(g: GraphBuilder, x: Value, own: Value, n: int, h: GemmaHparams) -> Value:
    """Return what layer n makes of its own embedding of each token, which rows of x gate."""
    block = f"blk.{n}"
    gated = g.gated(g.matmul(x, f"{block}.inp_gate.weight"), own, GELU)
    made = g.matmul(gated, f"{block}.proj.weight")
    return g.rms_norm(made, f"{block}.post_norm.weight", h.norm_eps)


def embeddings_by_layer(g: GraphBuilder, inputs: Inputs, x: Value, h: GemmaHparams) -> Value:
    """Return f32[n_tokens, n_layers * width_by_layer], what all layers have of each token.

    They come from a table, where an embedding row counts as token 0, and from the row itself.
    """
    width, n_layers = h.width_by_layer, h.n_layers
    table = g.embed(inputs.tokens, "per_layer_token_embd.weight", scale=width**0.5, absent=0)
    rows = g.scale(g.matmul(x, "per_layer_model_proj.weight"), h.width**-0.5)
    rows = g.rms_norm(g.split_heads(rows, n_layers), "per_layer_proj_norm.weight", h.norm_eps)
    return g.scale(g.add(g.merge_heads(rows), table), 2**-0.5)


def trunk(g: GraphBuilder, inputs: Inputs, h: GemmaHparams) -> Outputs:
    """Build the trunk."""
    x = g.embed(inputs.tokens, "token_embd.weight", embeddings=True, scale=h.width**0.5)
    of_layers = embeddings_by_layer(g, inputs, x, h) if h.width_by_layer else None
    for n in range(h.n_layers):
        x = g.tap(f"layer_input:{n}", x)
        begin, end = n * h.width_by_layer, (n + 1) * h.width_by_layer
        own = None if of_layers is None else g.slice(of_layers, begin, end)
        x = layer(g, x, inputs.positions, n, h, own)
    g.tap(f"layer_input:{h.n_layers}", x)  # what would enter one more layer
    return outputs(g, x, h)


def outputs(g: GraphBuilder, x: Value, h: GemmaHparams) -> Outputs:
    """Return logits of the output rows, and offer the last states."""
    g.tap("residual", x)
    hidden = g.tap("hidden", g.rms_norm(x, "output_norm.weight", h.norm_eps))
    logits = g.matmul(g.output_rows(hidden), "output.weight")
    if h.softcap:
        logits = g.scale(g.activation(g.scale(logits, 1 / h.softcap), "tanh"), h.softcap)
    return Outputs(logits=logits)
