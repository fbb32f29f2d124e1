"""Qwen3.5, Qwen3.6 and Qwen3-Next: hybrids of Gated DeltaNet and attention, and their MTP head."""

from mtpcore.plugin import (
    ATTENTION_SCALES,
    EXPERT_SCALES,
    FEED_FORWARD_SCALES,
    NEXTN_TIES,
    OUTPUT_TIE,
    ROUTER_TYPE,
    SHARED_EXPERT_SCALES,
    Checkpoint,
    DrafterSpec,
    Feed,
    ModelSpec,
    hookimpl,
    nextn_fit,
    trunk_fit,
)
from mtpcore_qwen_mtp.checkpoint import (
    HEAD_CHECKPOINT,
    QWEN3NEXT_CHECKPOINT,
    QWEN35_CHECKPOINT,
    QWEN35MOE_CHECKPOINT,
    head_alone,
)
from mtpcore_qwen_mtp.graph import QwenHparams, QwenNextHparams, head, trunk

EXACT = (ROUTER_TYPE, ("blk.{n}.ffn_gate_inp_shexp.weight", "F32"))
"""Routers, that of the shared expert included."""

SCALED = (*ATTENTION_SCALES, *FEED_FORWARD_SCALES, *EXPERT_SCALES, *SHARED_EXPERT_SCALES)
LINEAR_SCALED = (
    *("blk.{n}.attn_gate", "blk.{n}.ssm_alpha", "blk.{n}.ssm_beta", "blk.{n}.ssm_out"),
)
"""Matrices of linear attention, whose scales llama.cpp reads in Qwen3.5 alone."""


def model(
    name: str,
    hparams: type[QwenHparams],
    checkpoint: Checkpoint,
    scaled: tuple[str, ...],
    model_type: str,
) -> ModelSpec:
    """Return the declaration of a trunk; ``model_type`` is transformers' name of its text model."""
    return ModelSpec(
        name=name,
        fit=trunk_fit(name),
        hparams=hparams.read,
        build=trunk,
        ties=(OUTPUT_TIE,),
        scaled=scaled,
        min_types=(*EXACT, ("blk.{n}.ssm_conv1d.weight", "F32")),
        unread=(("blk.{n}.ssm_in.weight", "attn_qkv and attn_gate count where both are there"),),
        checkpoint=checkpoint,
        layouts=(head_alone(checkpoint, model_type),),
    )


QWEN35 = model("qwen35", QwenHparams, QWEN35_CHECKPOINT, (*SCALED, *LINEAR_SCALED), "qwen3_5_text")
QWEN35MOE = model(
    "qwen35moe", QwenHparams, QWEN35MOE_CHECKPOINT, (*SCALED, *LINEAR_SCALED), "qwen3_5_moe_text"
)
QWEN3NEXT = model(
    "qwen3next",
    QwenNextHparams,
    QWEN3NEXT_CHECKPOINT,
    tuple(name for name in SCALED if not name.endswith("attn_qkv")),
    "qwen3_next",
)

MTP = DrafterSpec(
    name="qwen_mtp",
    fit=nextn_fit("qwen35", "qwen35moe", "qwen3next"),
    build=head,
    feeds=(
        Feed(
            slot="hidden",
            taps=("hidden",),
            recycle="hidden",
            evidence="transformers 5.23 MtpModel and llama.cpp draft-mtp give the same drafts with "
            "the trunk's normed state in and the head's normed state recycled; ik_llama.cpp PR "
            "1815 (35B-A3B): second drafts accepted .8 of the time with it, .5 without",
        ),
    ),
    ties=NEXTN_TIES,
    min_types=EXACT,
    checkpoint=HEAD_CHECKPOINT,
    acceptance=(0.6, 0.95),
    evidence="ik_llama.cpp PR 1815 (Qwen3.6-35B-A3B): one draft accepted .88 of the time, two .80",
)


@hookimpl
def mtpcore_models() -> list[ModelSpec]:
    """Offer the trunks."""
    return [QWEN35, QWEN35MOE, QWEN3NEXT]


@hookimpl
def mtpcore_drafters() -> list[DrafterSpec]:
    """Offer the head."""
    return [MTP]
