"""The graph of LiLiCorr: a block, and a small transformer over the best tokens of its rows.

LiLiCorr: Lightweight Likelihood Correlation of Parallel Drafts, 2026 (arXiv 2608.20530); its
authors' code for SGLang (pull request 37462), and vLLM's (pull request 57934). The candidates of
all rows attend to each other. Of each come two vectors, one that meets candidates of the next row
and one that meets those of the row before. A row's candidates are scored after the best one of the
row before; from these logits drafts are chosen, as in TensorRT-LLM. Names of tensors are ours.
"""

from mtpcore.plugin import GraphBuilder, Inputs, Outputs, Value
from mtpcore_dflash.graph import DFlashHparams, layers, projected_taps

_FIRST = 1
"""The pending token's row drafts nothing: it has no candidates."""
_FEATURE_EPS = 1e-5
"""Of the norm of a candidate's features: PyTorch's default."""


def candidate_block(g: GraphBuilder, inputs: Inputs, h: DFlashHparams) -> Outputs:
    """Score the best tokens of each row of a block after the best one of the row before."""
    hidden = g.rms_norm(layers(g, inputs, h), "output_norm.weight", h.norm_eps)
    logits = g.matmul(hidden, "output.weight")
    ids, shares = g.find_best(logits, h.n_candidates)
    tokens, target = g.embed_ids(ids, "token_embd.weight"), projected_taps(g, inputs, h)
    with g.within("lilicorr."):
        x = _transformer(g, _candidates(g, tokens, shares, hidden), h)
        start, going, coming = _vectors(g, x, _anchor(g, target, h), h)
    walk = g.block_walk(
        ids, start, going, coming, size=h.block_size, width=int(logits.shape[1]), first=_FIRST
    )
    return Outputs(logits=g.output_rows(walk))


def _anchor(g: GraphBuilder, target: Value, h: DFlashHparams) -> Value:
    """Return what the target's row before the pending token becomes, for each row of a block.

    Only the first row is fed that one. A mix of rows hands it on.
    """
    x = g.matmul(target, "context.weight", "context.bias")
    return g.rms_norm(g.block_mix(x, "anchor_mix.weight"), "anchor_norm.weight", h.norm_eps)


def _candidates(g: GraphBuilder, tokens: Value, shares: Value, hidden: Value) -> Value:
    """Join what is known of each candidate: [T, n, width].

    Its token, its row and which one that is, its share of the row's choice, and its rank.
    """
    n = int(shares.shape[1])
    if g.has("token.weight"):
        tokens = g.rank_matmul(tokens, "token.weight", "token.bias")
    row = g.matmul(hidden, "row.weight", "row.bias")
    ones = g.shift_by(g.scale(row, 0.0), "one.weight")
    row = g.add(row, g.block_mix(ones, "slot_mix.weight"))
    x = g.add(tokens, g.repeat(g.split_heads(row, 1), n))
    x = g.add(x, _features(g, shares))
    return g.split_heads(g.shift_by(g.merge_heads(x), "rank.weight"), n)


def _features(g: GraphBuilder, shares: Value) -> Value:
    """Return what the shares of candidates and their ranks become: [T, n, 2] -> [T, n, width].

    They are the logarithm and the share, how much less the logarithm is than the best one, the rank
    from 0 to 1, and whether it is the first.
    """
    n = int(shares.shape[1])
    logs = g.slice(shares, 0, 1)
    best = g.repeat(g.split_heads(g.slice(g.merge_heads(shares), 0, 1), 1), n)
    less = g.add(logs, g.scale(best, -1.0))
    x = g.concat(shares, less, g.scale(shares, 0.0))
    x = g.split_heads(g.shift_by(g.merge_heads(x), "rank_features.weight"), n)
    x = g.layer_norm(x, "feature_norm.weight", "feature_norm.bias", _FEATURE_EPS)
    x = g.activation(g.rank_matmul(x, "feature_up.weight", "feature_up.bias"), "silu")
    return g.rank_matmul(x, "feature_down.weight", "feature_down.bias")


def _transformer(g: GraphBuilder, x: Value, h: DFlashHparams) -> Value:
    """Let candidates attend to each other."""
    width, layer = int(x.shape[2]), 0
    distances = g.resolve("distance.weight")
    n_heads = distances.shape[0] if distances else 1
    while g.has(f"{layer}.attn_norm.weight"):
        with g.within(f"{layer}."):
            y = g.rms_norm(x, "attn_norm.weight", h.norm_eps)
            y = g.rank_matmul(y, "attn_qkv.weight", "attn_qkv.bias")
        q, k, v = (g.slice(y, part * width, (part + 1) * width) for part in range(3))
        y = g.block_attention(
            q,
            k,
            v,
            "distance.weight",
            size=h.block_size,
            scale=(width // n_heads) ** -0.5,
            first=_FIRST,
        )
        with g.within(f"{layer}."):
            x = g.add(x, g.rank_matmul(y, "attn_output.weight", "attn_output.bias"))
            y = g.rms_norm(x, "ffn_norm.weight", h.norm_eps)
            y = g.activation(g.rank_matmul(y, "ffn_up.weight", "ffn_up.bias"), "silu")
            x = g.add(x, g.rank_matmul(y, "ffn_down.weight", "ffn_down.bias"))
        layer += 1
    return g.rms_norm(x, "output_norm.weight", h.norm_eps)


def _vectors(
    g: GraphBuilder, x: Value, anchor: Value, h: DFlashHparams
) -> tuple[Value, Value, Value]:
    """Return the anchor's vector, and the two of each candidate; of length 1, or scaled."""
    beside = g.repeat(g.split_heads(anchor, 1), int(x.shape[1]))
    x = g.concat(x, beside, g.mul(x, beside))
    x = g.activation(g.rank_matmul(x, "factor.weight", "factor.bias"), "silu")
    start = g.matmul(anchor, "start.weight", "start.bias")
    going, coming = (
        g.rank_matmul(x, f"{name}.weight", f"{name}.bias") for name in ("going", "coming")
    )
    start, going, coming = (g.l2_norm(y, h.vector_eps**2) for y in (start, going, coming))
    return g.scale(start, h.score_scale), g.scale(going, h.score_scale), coming
