"""Multi-head latent attention (MLA): keys and values of all heads come from one short row.

DeepSeek-V2 (2024, arXiv 2405.04434), section 2.1. For each token ``c`` is a compressed row and
``k_r`` a rotated one that all heads share; head h has the key ``[K_h c, k_r]`` and the value
``V_h c``. Memory holds ``[c, k_r]``: with ``K_h^T q`` in place of the plain part of a query the
scores are the same, and ``V_h`` is applied to the weighted sum of the rows c. Files made before
that was usual hold K and V in one matrix; then keys and values are made, and kept, for every head.
"""

from __future__ import annotations

import math

import msgspec

from mtpcore.boundary.sizes import Count
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.blocks import apply_rope
from mtpcore.models.hparams import Hparams
from mtpcore.models.rope import Rope

__all__ = ["Mla", "mla_attention", "mla_block"]


class Mla(msgspec.Struct, frozen=True, kw_only=True):
    """Latent attention of a block.

    Attributes
    ----------
    n_heads : int
        Query heads, where blocks differ in them; 0: ``Hparams.n_heads``.
    rank : int
        Width of a compressed row.
    key_width, value_width : int
        Of a head; a key's rotated part is its last.
    scale : float
        Of the scores, before the softmax.
    rotates : bool
        Whether the part that is to be rotated is; else it stays.
    rope : Rope, optional
        The rotation, where blocks differ in it.
    window : int
        How many tokens a row sees, itself included; 0 is all.
    growth, growth_length : float, int
        How queries grow with their position, ``beta`` and ``n`` of
        ``GraphBuilder.scale_by_position``; 0: they do not.
    """

    n_heads: int = 0
    rank: int = 0
    key_width: int = 0
    value_width: int = 0
    scale: float = 1.0
    rotates: bool = True
    rope: Rope | None = None
    window: int = 0
    growth: float = 0.0
    growth_length: int = 0

    @classmethod
    def read(cls, fields: Fields) -> Mla:
        """Read ``{arch}.attention.*``, and what YaRN does to the scores.

        With ``yarn_log_multiplier`` (a tenth of the configuration's ``mscale_all_dim``) scores are
        multiplied by (1 + multiplier * ln(factor))^2, and the rotation's magnitude stays 1.

        Raises
        ------
        ModelFileError
            A size is missing or out of range.
        """
        prefix = "{arch}.attention."
        growth = fields.get(prefix + "temperature_scale", float, 0.0)
        widths = [
            fields.get(f"{prefix}{name}_length_mla", Count, 0)
            or fields.require(f"{prefix}{name}_length", Count)
            for name in ("key", "value")
        ]
        return cls(
            rank=fields.require(prefix + "kv_lora_rank", Count),
            key_width=widths[0],
            value_width=widths[1],
            scale=_yarn_rise(fields) ** 2 / math.sqrt(widths[0]),
            growth=growth,
            growth_length=fields.require(prefix + "temperature_length", Count) if growth else 0,
        )


def _yarn_rise(fields: Fields) -> float:
    prefix = "{arch}.rope.scaling."
    factor = fields.get(prefix + "factor", float, 1.0)
    if fields.get(prefix + "type", str, "none") != "yarn" or factor <= 1:
        return 1.0
    return 1 + fields.get(prefix + "yarn_log_multiplier", float, 0.0) * math.log(factor)


def mla_block(
    g: GraphBuilder, x: Value, positions: Value, layer: int, h: Hparams, mla: Mla
) -> Value:
    """Return what latent attention adds to the residual stream, norm included.

    Parameters
    ----------
    x : Value
        f32[n_tokens, width], the residual stream.
    positions, layer, h, mla
        As ``mla_attention``.

    Returns
    -------
    Value
        f32[n_tokens, width]
    """
    a = g.rms_norm(x, f"blk.{layer}.attn_norm.weight", h.norm_eps)
    return mla_attention(g, a, positions, layer, h, mla)


def mla_attention(
    g: GraphBuilder, a: Value, positions: Value, layer: int, h: Hparams, mla: Mla
) -> Value:
    """Return what latent attention adds to the residual stream: ``mla_block`` without its norm.

    Tensors: ``attn_q``, or ``attn_q_a``, ``attn_q_a_norm`` and ``attn_q_b``; ``attn_kv_a_mqa``,
    ``attn_kv_a_norm``; ``attn_k_b`` and ``attn_v_b`` (stacks of matrices, one a head, or all heads'
    as one matrix), or ``attn_kv_b``; ``attn_output``. The rotated part of keys is normed, and the
    sigmoid of a gate multiplies each head, or each value, where the file has ``attn_k_norm`` and
    ``attn_gate``.

    Parameters
    ----------
    a : Value
        f32[n_tokens, width], normed.
    layer : int
        Number of the block, and of its memory layer.
    mla : Mla
        How the block attends.

    Returns
    -------
    Value
        f32[n_tokens, width]
    """
    block, rope = f"blk.{layer}.", mla.rope or h.rope

    def rotate(heads: Value) -> Value:
        if not mla.rotates:
            return heads
        return apply_rope(g, heads, positions, rope, "rope_freqs.weight")

    n_plain = mla.key_width - 2 * len(rope.frequencies)
    n_heads = mla.n_heads or h.n_heads
    q = g.split_heads(_query(g, a, block, h), n_heads)
    rotated = rotate(g.slice(q, n_plain, mla.key_width))
    both = g.matmul(a, block + "attn_kv_a_mqa.weight")
    c = g.rms_norm(g.slice(both, 0, mla.rank), block + "attn_kv_a_norm.weight", h.norm_eps)
    key = g.split_heads(g.slice(both, mla.rank, int(both.shape[1])), 1)
    if g.has(block + "attn_k_norm.weight"):
        key = g.rms_norm(key, block + "attn_k_norm.weight", h.norm_eps)
    key = rotate(key)

    def attend(q: Value, k: Value, v: Value | int) -> Value:
        if mla.growth:
            q = g.scale_by_position(q, positions, beta=mla.growth, n=mla.growth_length)
        return g.attention(q, k, v, layer=layer, scale=mla.scale, window=mla.window)

    if g.has(block + "attn_k_b.weight"):
        plain = g.slice(q, 0, n_plain)
        q = g.concat(g.head_matmul(plain, block + "attn_k_b.weight"), rotated)
        y = attend(q, g.concat(g.split_heads(c, 1), key), mla.rank)
        y = g.head_matmul(y, block + "attn_v_b.weight")
    else:
        kv = g.split_heads(g.matmul(c, block + "attn_kv_b.weight"), n_heads)
        k, v = g.repeat(key, n_heads), g.slice(kv, n_plain, n_plain + mla.value_width)
        if n_plain:
            rotated = g.concat(g.slice(q, 0, n_plain), rotated)
            k = g.concat(g.slice(kv, 0, n_plain), k)
        y = attend(rotated, k, v)
    if g.has(block + "attn_gate.weight"):
        gate = g.activation(g.matmul(a, block + "attn_gate.weight"), "sigmoid")
        y = g.mul(y, gate if gate.shape[1] == n_heads else g.split_heads(gate, n_heads))
    return g.matmul(g.merge_heads(y), block + "attn_output.weight")


def _query(g: GraphBuilder, a: Value, block: str, h: Hparams) -> Value:
    """Return the queries of all heads, f32[n_tokens, heads * key_width]."""
    if not g.has(block + "attn_q_a.weight"):
        return g.matmul(a, block + "attn_q.weight")
    low = g.matmul(a, block + "attn_q_a.weight")
    low = g.rms_norm(low, block + "attn_q_a_norm.weight", h.norm_eps)
    return g.matmul(low, block + "attn_q_b.weight")
