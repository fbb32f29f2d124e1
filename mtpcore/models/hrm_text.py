"""HRM-Text (``hrm_text``): two stacks of layers that take turns, each with a state of its own.

The low stack reads the sum of both states several times in a row, then the high one does once, and
so on. A pass has memory of its own and shares its weights with the other passes of its stack:
``block_count`` counts passes' layers. (Wang et al. 2025, "Hierarchical Reasoning Model",
arXiv 2506.21734.)
"""

from __future__ import annotations

import msgspec

from mtpcore.boundary.sizes import Depth
from mtpcore.graph import GraphBuilder, Inputs, Outputs, Value
from mtpcore.models.checkpoints.gated_attention import HRM_TEXT as CHECKPOINT
from mtpcore.models.variants import (
    Variant,
    VariantHparams,
    attention,
    embed,
    feed_forward,
    variant_spec,
)

__all__ = ["HRM_TEXT", "HrmHparams"]

_LOW_STATE = "hrm.z_l_init"


class HrmHparams(VariantHparams, frozen=True, kw_only=True):
    """Hyper-parameters: layers of a stack, turns, and passes of the low stack in each."""

    stack_depth: Depth = msgspec.field(name="hrm.layers_per_stack")
    n_turns: Depth = msgspec.field(name="hrm.h_cycles")
    n_low_passes: Depth = msgspec.field(name="hrm.l_cycles")

    def __post_init__(self) -> None:
        """Check that the passes are as many as the layers."""
        super().__post_init__()
        n_passes = self.n_turns * (self.n_low_passes + 1)
        if self.n_blocks != self.stack_depth * n_passes:
            raise ValueError(
                f"{n_passes} passes of {self.stack_depth} layers are not {self.n_blocks} blocks"
            )


def _build(g: GraphBuilder, inputs: Inputs, h: HrmHparams) -> Outputs:
    pass_number = 0

    def run(stack: int, x: Value) -> Value:
        """Return the state after a pass: 0 of the low stack, 1 of the high one."""
        nonlocal pass_number
        for i in range(h.stack_depth):
            block, memory = stack * h.stack_depth + i, pass_number * h.stack_depth + i
            g.tap(f"layer_input:{memory}", x)
            a = g.rms_norm(x, None, h.norm_eps)
            x = g.add(x, attention(g, a, inputs.positions, block, h, memory=memory))
            x = g.add(x, feed_forward(g, g.rms_norm(x, None, h.norm_eps), block, h))
        pass_number += 1
        g.tap("residual", x) if pass_number * h.stack_depth == h.n_layers else None
        return g.rms_norm(x, None, h.norm_eps)

    high, low = embed(g, inputs, h), None
    for _ in range(h.n_turns):
        for _ in range(h.n_low_passes):
            low = run(0, g.shift_by(high, _LOW_STATE) if low is None else g.add(high, low))
        assert low is not None
        high = run(1, g.add(high, low))
    hidden = g.tap("hidden", high)
    return Outputs(logits=g.matmul(g.output_rows(hidden), "output.weight"))


HRM_TEXT = variant_spec(
    "hrm_text",
    Variant(norm="plain_rms", embedding_scale=lambda h: 1.0),
    also=(_LOW_STATE,),
    hparams=HrmHparams,
    build=_build,
    checkpoint=CHECKPOINT,
    unread=(("{arch}.hrm.prefix_lm", "llama.cpp reads prompts causally, too"),),
)
