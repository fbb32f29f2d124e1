"""Mamba-2: layers of a state space model, whose states are matrices that forget by one number.

Dao and Gu, "Transformers are SSMs" (2024, arXiv 2405.21060), sections 6 and 7. For each head, with
its state S: ``S = exp(A dt) S + B (dt x)^T``, and the result is ``S^T C + D x``. It is the delta
rule without its correction: B is the key, C the query, x the value and dt its strength.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import msgspec

from mtpcore.boundary.sizes import Count
from mtpcore.gguf.metadata import Fields, convert
from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.blocks import weight_rows
from mtpcore.models.hparams import Hparams

__all__ = [
    "SSM_EXACT",
    "SSM_SCALES",
    "Ssm",
    "convolve",
    "linear_attention",
    "mamba2",
    "state_space",
]

SSM_EXACT: tuple[str, str] = ("blk.{n}.ssm_conv1d.weight", "F32")
"""Convolutions stay as they are: a kernel is no row of a matrix."""

SSM_SCALES: tuple[str, str] = ("blk.{n}.ssm_in", "blk.{n}.ssm_out")
"""Matrices of such layers, whose scales count in llama.cpp's graphs."""


class Ssm(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of such layers.

    Attributes
    ----------
    n_heads, n_groups : int
        Heads, and groups of them that share B and C.
    state_width : int
        Of B and of C.
    """

    n_heads: Count = msgspec.field(name="time_step_rank")
    n_groups: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name="group_count", default=1)
    state_width: Count = msgspec.field(name="state_size")

    @classmethod
    def read(cls, fields: Fields) -> Ssm:
        """Read ``{arch}.ssm.*``."""
        return convert(fields, cls, "{arch}.ssm.")

    def __post_init__(self) -> None:
        """Check that heads share B and C evenly; no groups are one."""
        if not self.n_groups:
            msgspec.structs.force_setattr(self, "n_groups", 1)
        if self.n_heads % self.n_groups:
            raise ValueError(f"{self.n_heads} heads are not divided into {self.n_groups} groups")


def mamba2(g: GraphBuilder, a: Value, layer: int, h: Hparams, ssm: Ssm) -> Value:
    """Return what a layer of Mamba-2 adds to the residual stream.

    Tensors: ``ssm_in``, whose rows are a gate, x, B, C and dt; ``ssm_conv1d`` over x, B and C;
    ``ssm_dt.bias``, ``ssm_a``, ``ssm_d``; ``ssm_norm`` of each group, after the gate; ``ssm_out``.

    Parameters
    ----------
    a : Value
        f32[n_tokens, width], normed.
    layer : int
        Number of the block, and of its state.

    Returns
    -------
    Value
        f32[n_tokens, width]
    """
    block = f"blk.{layer}."
    rows = g.matmul(a, block + "ssm_in.weight")
    n_keys = ssm.n_groups * ssm.state_width
    width = (int(rows.shape[1]) - ssm.n_heads - 2 * n_keys) // 2
    ends = (0, width, 2 * width + 2 * n_keys, int(rows.shape[1]))
    gate, mixed, step = (g.slice(rows, *span) for span in pairwise(ends))
    mixed = convolve(g, mixed, layer)
    x = g.split_heads(g.slice(mixed, 0, width), ssm.n_heads)
    b, c = (
        g.split_heads(g.slice(mixed, at, at + n_keys), ssm.n_groups)
        for at in (width, width + n_keys)
    )
    y = state_space(g, x, b, c, step, layer)
    y = g.merge_heads(g.gated(g.split_heads(gate, ssm.n_heads), y))
    if g.has(block + "ssm_norm.weight"):
        y = g.rms_norm(g.split_heads(y, ssm.n_groups), None, h.norm_eps)
        y = g.merge_heads(g.scale_by(y, block + "ssm_norm.weight"))
    return g.matmul(y, block + "ssm_out.weight")


def convolve(g: GraphBuilder, x: Value, layer: int) -> Value:
    """Return SiLU of a layer's convolution, ``ssm_conv1d``, with its bias where there is one."""
    name = f"blk.{layer}.ssm_conv1d"
    x = g.causal_conv(x, f"{name}.weight", layer=layer, kind="none")
    return g.activation(g.shift_by(x, f"{name}.bias") if g.has(f"{name}.bias") else x, "silu")


def state_space(g: GraphBuilder, x: Value, b: Value, c: Value, step: Value, layer: int) -> Value:
    """Update a layer's states and read them: f32[n_tokens, heads, head width].

    Parameters
    ----------
    x : Value
        f32[n_tokens, heads, head width]
    b, c : Value
        f32[n_tokens, groups, state width]
    step : Value
        f32[n_tokens, heads], dt before its bias and its activation.
    """
    block = f"blk.{layer}."
    dt = g.activation(g.shift_by(step, block + "ssm_dt.bias"), "softplus")
    decay = g.merge_heads(_times(g, g.split_heads(dt, int(x.shape[1])), block + "ssm_a"))
    y = linear_attention(g, c, b, x, decay, dt, layer)
    return g.add(y, _times(g, x, block + "ssm_d"))


def linear_attention(
    g: GraphBuilder,
    q: Value,
    k: Value,
    v: Value,
    decay: Value,
    beta: Value | None,
    layer: int,
    *,
    rates: str | None = None,
) -> Value:
    """Update each head's state, S = exp(decay) S + k (beta v)^T, and read it: S^T q.

    Parameters
    ----------
    q, k, v, decay, beta, layer, rates
        As in ``GraphBuilder.delta_rule``, which corrects nothing; None: beta is 1.
    """
    if beta is None:
        is_flat = len(decay.shape) == 2
        rows = decay if is_flat else g.slice(g.merge_heads(decay), 0, int(v.shape[1]))
        beta = g.scale(g.activation(g.scale(rows, 0.0), "sigmoid"), 2.0)
    return g.delta_rule(
        q, k, v, decay, beta, layer=layer, key_heads="grouped", corrects=False, rates=rates
    )


def _times(g: GraphBuilder, x: Value, weight: str) -> Value:
    """Multiply heads by a weight of one value each, which files hold as [H, 1] or as [H]."""
    found = g.resolve(weight)
    if found is not None and len(found.shape) == 1:
        return g.mul(x, weight_rows(g, x, weight))
    return g.scale_by(x, weight)
