"""MiniMax-01: hybrids of lightning attention and attention, with experts in every layer.

MiniMax, "MiniMax-01: Scaling Foundation Models with Lightning Attention" (2025, arXiv 2501.08313),
section 2.2: a linear attention whose states forget by a number for each head that is no weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.checkpoints import minimax
from mtpcore.models.hybrid import count_heads_once, times_scale
from mtpcore.models.ssm import linear_attention
from mtpcore.models.variants import (
    Variant,
    VariantHparams,
    attention,
    embed,
    feed_forward,
    norm,
    outputs,
    run_layers,
    variant_spec,
)

__all__ = ["MINIMAX_01"]

_MOST_JOINED = 8


def _layer(
    g: GraphBuilder, x: Value, positions: Value, n: int, h: VariantHparams, *, slopes: Value
) -> Value:
    """Return what layer n makes of the stream: its branches are added to the rows they read."""
    block = f"blk.{n}"
    a = norm(g, x, f"{block}.attn_norm", h)
    if g.has(f"{block}.attn_norm_2.weight"):
        y = _lightning(g, a, n, h, slopes)
    else:
        y = times_scale(g, attention(g, a, positions, n, h), f"{block}.attn_output")
    x = g.add(y, g.scale(a, h.residual_scale))
    f = norm(g, x, f"{block}.ffn_norm", h)
    return g.add(feed_forward(g, f, n, h), g.scale(f, h.residual_scale))


def _lightning(g: GraphBuilder, a: Value, n: int, h: VariantHparams, slopes: Value) -> Value:
    """Return what lightning attention makes of normed rows; later layers forget less."""
    block, width = f"blk.{n}", h.head_width
    rows = g.activation(g.matmul(a, f"{block}.attn_qkv.weight"), "silu")
    heads = g.split_heads(rows, h.n_heads)
    q, k, v = (g.slice(heads, i * width, (i + 1) * width) for i in range(3))
    decay = g.scale(slopes, -(1 - n / max(h.n_layers - 1, 1) + 1e-5))
    y = g.merge_heads(linear_attention(g, q, k, v, decay, None, n))
    y = norm(g, y, f"{block}.attn_norm_2", h)
    gate = g.activation(g.matmul(a, f"{block}.attn_gate.weight"), "sigmoid")
    return g.matmul(g.mul(gate, y), f"{block}.attn_output.weight")


def _constants(g: GraphBuilder, x: Value, values: Sequence[float]) -> Value:
    """Return the same values in each row: [T, values]."""
    half = g.activation(g.scale(g.slice(x, 0, 1), 0.0), "sigmoid")
    columns = [g.scale(half, 2 * value) for value in values]
    while len(columns) > 1:
        parts = [columns[i : i + _MOST_JOINED] for i in range(0, len(columns), _MOST_JOINED)]
        columns = [g.concat(*part) if len(part) > 1 else part[0] for part in parts]
    return columns[0]


def _build(g: GraphBuilder, inputs: Inputs, h: VariantHparams) -> Outputs:
    x = embed(g, inputs, h)
    slopes = _constants(g, x, [2 ** (-8 * (i + 1) / h.n_heads) for i in range(h.n_heads)])
    return outputs(g, run_layers(g, x, inputs, h, partial(_layer, slopes=slopes)), h)


def _by_tensors(fields: Fields) -> Fields:
    """Return metadata without which layers are recurrent: their tensors say it."""
    fields.dismiss("{arch}.full_attention_interval")
    return count_heads_once(fields)


MINIMAX_01 = variant_spec(
    "minimax-01",
    Variant(
        residual_scale=lambda h: 1.0,
        scaled=("blk.{n}.attn_q", "blk.{n}.attn_k", "blk.{n}.attn_v", "output"),
    ),
    build=_build,
    adapt=_by_tensors,
    checkpoint=minimax.MINIMAX_01,
    layouts=(minimax.MINIMAX_01_OF_TRANSFORMERS,),
)
