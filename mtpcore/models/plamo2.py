"""PLaMo 2: hybrids of attention and a relative of Mamba-2 that makes B, C and dt of x."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.checkpoints.plamo import PLAMO2 as CHECKPOINT
from mtpcore.models.mamba2 import MambaHparams
from mtpcore.models.ssm import SSM_EXACT, state_space
from mtpcore.models.variants import Variant, attention, build, layer, norm, variant_spec

__all__ = ["PLAMO2"]


def _mixed(g: GraphBuilder, a: Value, positions: Value, n: int, h: MambaHparams) -> Value:
    block, ssm = f"blk.{n}.", h.ssm
    if ssm is None or not g.has(block + "ssm_in.weight"):
        return attention(g, a, positions, n, h)
    rows = g.split_heads(g.matmul(a, block + "ssm_in.weight"), ssm.n_heads)
    width = int(rows.shape[2]) // 2
    gate, x = g.slice(rows, 0, width), g.merge_heads(g.slice(rows, width, 2 * width))
    x = g.causal_conv(x, block + "ssm_conv1d.weight", layer=n)
    mixed = g.matmul(x, block + "ssm_x.weight")
    ends = (0, ssm.state_width, 2 * ssm.state_width, int(mixed.shape[1]))
    b, c, step = (
        norm(g, g.slice(mixed, *span), f"{block}ssm_{name}_norm", h)
        for span, name in zip(pairwise(ends), ("b", "c", "dt"), strict=True)
    )
    heads = g.split_heads(x, ssm.n_heads)
    step = g.matmul(step, block + "ssm_dt.weight")
    y = state_space(g, heads, g.split_heads(b, 1), g.split_heads(c, 1), step, n)
    return g.matmul(g.merge_heads(g.gated(gate, y)), block + "ssm_out.weight")


PLAMO2 = variant_spec(
    "plamo2",
    # Files of llama.cpp's converter have no windows, and all layers that attend see all.
    Variant(fuses_gate=True, window_period=0, scaled=("blk.{n}.attn_output", "output")),
    hparams=MambaHparams,
    min_types=(SSM_EXACT,),
    build=partial(build, layer=partial(layer, mixer=_mixed)),
    checkpoint=CHECKPOINT,
)
