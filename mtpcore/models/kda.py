"""Kimi Delta Attention (KDA): the gated delta rule with a decay for each entry of a key.

Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture" (2025, arXiv 2510.26692),
section 3.
"""

from __future__ import annotations

from collections.abc import Mapping

from mtpcore.gguf import Tensor
from mtpcore.gguf.metadata import Fields
from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.hparams import Hparams
from mtpcore.models.hybrid import check_kernels

__all__ = ["KDA_EXACT", "KDA_UNREAD", "check_kda", "delta_attention"]

KDA_EXACT: tuple[str, str] = ("blk.{n}.ssm_conv1d_*.weight", "F32")
"""Convolutions stay as they are: a kernel is no row of a matrix."""

KDA_UNREAD: tuple[tuple[str, str], ...] = tuple(
    (f"blk.{{n}}.attn_{part}.bias", "llama.cpp does not compute with it") for part in "qkv"
)
"""What files may hold beside KDA's matrices."""

_L2_EPS = 1e-6
"""Added to the squared length of queries and keys, whatever the norms of rows add."""


def check_kda(fields: Fields, tensors: Mapping[str, Tensor]) -> None:
    """Check that convolutions are as long as the metadata say; raise ModelFileError."""
    fields.dismiss("{arch}.kda.head_dim")  # the matrices are so wide
    for part in "qkv":
        check_kernels(fields, tensors, f"ssm_conv1d_{part}.weight", "{arch}.ssm.conv_kernel")


def delta_attention(
    g: GraphBuilder,
    a: Value,
    layer: int,
    h: Hparams,
    *,
    decay_bound: float = 0.0,
    rate: float = 1.0,
) -> Value:
    """Return what KDA adds to the residual stream.

    Tensors: ``attn_{q,k,v}``, each with a convolution ``ssm_conv1d_{q,k,v}``; ``ssm_f_a`` and
    ``ssm_f_b`` with ``ssm_dt.bias`` and ``ssm_a``, of which decays are made; ``ssm_beta``;
    ``ssm_norm`` and the gate ``ssm_g_a`` and ``ssm_g_b``; ``attn_output``. Where a file lacks the
    second matrix of a pair the first one is the whole, as is ``ssm_g``.

    Parameters
    ----------
    a : Value
        f32[n_tokens, width], normed.
    layer : int
        Number of the block. Its convolutions are recurrent layers of their own.
    decay_bound : float
        Where it is not 0, logarithms of decays are between it and 0, by a sigmoid; else they are
        the rates ``ssm_a``, which are negative, times a softplus.
    rate : float
        What rates within the sigmoid are multiplied by: -1, where these are negative, too.

    Returns
    -------
    Value
        f32[n_tokens, width]
    """
    block = f"blk.{layer}."

    def heads_of(part: str, state: int) -> Value:
        rows = g.matmul(a, f"{block}attn_{part}.weight")
        rows = g.causal_conv(rows, f"{block}ssm_conv1d_{part}.weight", layer=state)
        return g.split_heads(rows, h.n_heads)

    def pair(name: str) -> Value:
        if g.has(whole := f"{block}{name}.weight"):
            return g.matmul(a, whole)
        rows, second = g.matmul(a, f"{block}{name}_a.weight"), f"{block}{name}_b.weight"
        return g.matmul(rows, second) if g.has(second) else rows

    q, k, v = (heads_of(part, 3 * layer + i) for i, part in enumerate("qkv"))
    step = g.split_heads(g.shift_by(pair("ssm_f"), f"{block}ssm_dt.bias"), h.n_heads)
    rates = f"{block}ssm_a"
    if decay_bound:
        step = g.scale_by(step, rates)
        step = step if rate == 1 else g.scale(step, rate)
        decay = g.scale(g.activation(step, "sigmoid"), decay_bound)
    else:
        decay = g.scale_by(g.activation(step, "softplus"), rates)
    o = g.delta_rule(
        g.scale(g.l2_norm(q, _L2_EPS), int(q.shape[2]) ** -0.5),
        g.l2_norm(k, _L2_EPS),
        v,
        decay,
        g.activation(g.matmul(a, f"{block}ssm_beta.weight"), "sigmoid"),
        layer=3 * layer,
    )
    o = g.rms_norm(o, f"{block}ssm_norm.weight", h.norm_eps)
    y = g.gated(g.split_heads(pair("ssm_g"), h.n_heads), o, "sigmoid")
    return g.matmul(g.merge_heads(y), f"{block}attn_output.weight")
