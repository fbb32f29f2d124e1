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

__all__ = ["Mla", "mla_block"]


class Mla(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of latent attention.

    Attributes
    ----------
    rank : int
        Width of a compressed row.
    key_width, value_width : int
        Of a head; a key's rotated part is its last.
    scale : float
        Of the scores, before the softmax.
    """

    rank: int = 0
    key_width: int = 0
    value_width: int = 0
    scale: float = 1.0

    @classmethod
    def read(cls, fields: Fields) -> Mla:
        """Read ``{arch}.attention.*``, and what YaRN does to the scores.

        With ``yarn_log_multiplier`` (a tenth of the configuration's ``mscale_all_dim``) scores are
        multiplied by (1 + multiplier * ln(factor))^2, and the rotation's magnitude stays 1.

        Raises
        ------
        ModelFileError
            A size is missing or out of range, or the file asks for scores that depend on the
            position (``temperature_scale``).
        """
        prefix = "{arch}.attention."
        if fields.get(prefix + "temperature_scale", float, 0.0):
            raise fields.error(
                prefix + "temperature_scale", "scores that depend on the position are not supported"
            )
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

    Tensors: ``attn_q``, or ``attn_q_a``, ``attn_q_a_norm`` and ``attn_q_b``; ``attn_kv_a_mqa``,
    ``attn_kv_a_norm``; ``attn_k_b`` and ``attn_v_b`` (stacks of matrices, one a head, or all heads'
    as one matrix), or ``attn_kv_b``; ``attn_output``.

    Parameters
    ----------
    x : Value
        f32[n_tokens, width], the residual stream.
    layer : int
        Number of the block, and of its memory layer.
    mla : Mla
        Its widths.

    Returns
    -------
    Value
        f32[n_tokens, width]
    """
    block = f"blk.{layer}."
    a = g.rms_norm(x, block + "attn_norm.weight", h.norm_eps)
    n_plain = mla.key_width - 2 * len(h.rope.frequencies)
    q = g.split_heads(_query(g, a, block, h), h.n_heads)
    plain = g.slice(q, 0, n_plain)
    rotated = apply_rope(g, g.slice(q, n_plain, mla.key_width), positions, h.rope)
    both = g.matmul(a, block + "attn_kv_a_mqa.weight")
    c = g.rms_norm(g.slice(both, 0, mla.rank), block + "attn_kv_a_norm.weight", h.norm_eps)
    key = g.split_heads(g.slice(both, mla.rank, int(both.shape[1])), 1)
    key = apply_rope(g, key, positions, h.rope)
    if g.has(block + "attn_k_b.weight"):
        q = g.concat(g.head_matmul(plain, block + "attn_k_b.weight"), rotated)
        k = g.concat(g.split_heads(c, 1), key)
        y = g.attention(q, k, mla.rank, layer=layer, scale=mla.scale)
        y = g.head_matmul(y, block + "attn_v_b.weight")
    else:
        kv = g.split_heads(g.matmul(c, block + "attn_kv_b.weight"), h.n_heads)
        k = g.concat(g.slice(kv, 0, n_plain), g.repeat(key, h.n_heads))
        v = g.slice(kv, n_plain, n_plain + mla.value_width)
        y = g.attention(g.concat(plain, rotated), k, v, layer=layer, scale=mla.scale)
    return g.matmul(g.merge_heads(y), block + "attn_output.weight")


def _query(g: GraphBuilder, a: Value, block: str, h: Hparams) -> Value:
    """Return the queries of all heads, f32[n_tokens, heads * key_width]."""
    if not g.has(block + "attn_q_a.weight"):
        return g.matmul(a, block + "attn_q.weight")
    low = g.matmul(a, block + "attn_q_a.weight")
    low = g.rms_norm(low, block + "attn_q_a_norm.weight", h.norm_eps)
    return g.matmul(low, block + "attn_q_b.weight")
