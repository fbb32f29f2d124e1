"""Mamba: layers of a state space model whose entries forget at rates of their own.

Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (2023, arXiv
2312.00752), section 3. Each channel c of x has a state of as many entries n as B and C have:
``h[n] = exp(A[c, n] dt[c]) h[n] + B[n] dt[c] x[c]``, and gives ``sum over n of C[n] h[n] + D[c]
x[c]``. It is linear attention of one head, whose columns are the channels: B is the key, C the
query and dt x the value.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from mtpcore.boundary.sizes import Count
from mtpcore.gguf.metadata import Fields, convert
from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.hparams import Hparams
from mtpcore.models.ssm import convolve, linear_attention

__all__ = ["SelectiveScan", "mamba"]

_PARTS = ("dt", "b", "c")


class SelectiveScan(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of such layers.

    Attributes
    ----------
    rank : int
        Of the matrices that dt is made by.
    state_width : int
        Of B and of C.
    norms_parts : bool
        Whether dt, B and C are normed where there are no weights for it.
    """

    rank: Count = msgspec.field(name="time_step_rank")
    state_width: Count = msgspec.field(name="state_size")
    norms_parts: bool = msgspec.field(name="dt_b_c_rms", default=False)

    @classmethod
    def read(cls, fields: Fields) -> SelectiveScan:
        """Read ``{arch}.ssm.*``."""
        return convert(fields, cls, "{arch}.ssm.")


def mamba(g: GraphBuilder, a: Value, layer: int, h: Hparams, scan: SelectiveScan) -> Value:
    """Return what a layer of Mamba adds to the residual stream.

    Tensors: ``ssm_in``, whose rows are x and a gate; ``ssm_conv1d`` over x; ``ssm_x``, whose rows
    are dt, B and C, with norms ``ssm_{dt,b,c}_norm`` in some files; ``ssm_dt``, ``ssm_a``,
    ``ssm_d``; ``ssm_out``.

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
    block = f"blk.{layer}.ssm_"
    rows = g.matmul(a, block + "in.weight")
    width = int(rows.shape[1]) // 2
    x, gate = g.slice(rows, 0, width), g.slice(rows, width, 2 * width)
    x = convolve(g, x, layer)
    dt, b, c = _parts(g, g.matmul(x, block + "x.weight"), block, h, scan)
    dt = g.activation(g.matmul(dt, block + "dt.weight", block + "dt.bias"), "softplus")
    b, c, value, decay = (g.split_heads(part, 1) for part in (b, c, g.mul(x, dt), dt))
    y = linear_attention(g, c, b, value, decay, None, layer, rates=block + "a")
    y = g.add(g.merge_heads(y), g.scale_by(x, block + "d"))
    return g.matmul(g.gated(gate, y), block + "out.weight")


def _parts(
    g: GraphBuilder, mixed: Value, block: str, h: Hparams, scan: SelectiveScan
) -> list[Value]:
    """Return dt, B and C; they are normed where a file has all weights for it, or says so."""
    ends = (0, scan.rank, scan.rank + scan.state_width, int(mixed.shape[1]))
    parts = [g.slice(mixed, *span) for span in pairwise(ends)]
    weights = [f"{block}{part}_norm.weight" for part in _PARTS]
    if all(map(g.has, weights)):
        return [g.rms_norm(x, w, h.norm_eps) for x, w in zip(parts, weights, strict=True)]
    if scan.norms_parts:
        return [g.rms_norm(x, None, h.norm_eps) for x in parts]
    return parts
