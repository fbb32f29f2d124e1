"""GLM-4.5, 4.6 and 4.7: the ``glm4moe`` trunk and its NextN head."""

from mtpcore.plugin import (
    NEXTN_TIES,
    OUTPUT_TIE,
    ROUTER_TYPE,
    DrafterSpec,
    Feed,
    ModelSpec,
    hookimpl,
    nextn_fit,
    trunk_fit,
)
from mtpcore_glm_nextn.checkpoint import HEAD_CHECKPOINT, TRUNK_CHECKPOINT
from mtpcore_glm_nextn.graph import GlmHparams, head, trunk

TRUNK = ModelSpec(
    name="glm4moe",
    fit=trunk_fit("glm4moe"),
    hparams=GlmHparams.read,
    build=trunk,
    ties=(OUTPUT_TIE,),
    min_types=(ROUTER_TYPE,),
    checkpoint=TRUNK_CHECKPOINT,
)

NEXTN = DrafterSpec(
    name="glm_nextn",
    fit=nextn_fit("glm4moe"),
    build=head,
    feeds=(
        Feed(
            slot="hidden",
            taps=("hidden",),
            recycle="hidden",
            evidence="transformers 5.23 MtpModel and llama.cpp draft-mtp give the same drafts with "
            "the trunk's normed state in and the head's normed state recycled",
        ),
    ),
    ties=NEXTN_TIES,
    min_types=(ROUTER_TYPE,),
    checkpoint=HEAD_CHECKPOINT,
    acceptance=(0.6, 0.95),
    evidence="ik_llama.cpp issue 1992, GLM-4.5-Air: first drafts accepted 0.84 of the time, and "
    "more once the head's memory held the whole prompt",
)


@hookimpl
def mtpcore_models() -> list[ModelSpec]:
    """Offer the trunk."""
    return [TRUNK]


@hookimpl
def mtpcore_drafters() -> list[DrafterSpec]:
    """Offer the head."""
    return [NEXTN]
