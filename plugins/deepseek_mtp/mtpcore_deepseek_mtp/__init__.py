"""DeepSeek-V2 to V3.2, R1, GLM-4.7-Flash, GLM-5, Mistral 4: the trunks and their MTP head."""

import msgspec

from mtpcore.plugin import (
    ATTENTION_SCALES,
    EXPERT_SCALES,
    FEED_FORWARD_SCALES,
    NEXTN_TIES,
    OUTPUT_TIE,
    ROUTER_TYPE,
    SHARED_EXPERT_SCALES,
    UNREAD_INDEXER,
    DrafterSpec,
    Feed,
    ModelSpec,
    as_variant,
    hookimpl,
    nextn_fit,
    trunk_fit,
)
from mtpcore_deepseek_mtp.checkpoint import (
    DSA_CHECKPOINT,
    FLASH_CHECKPOINT,
    HEAD_CHECKPOINT,
    V2_CHECKPOINT,
    V3_CHECKPOINT,
    V32_CHECKPOINT,
)
from mtpcore_deepseek_mtp.graph import (
    DeepseekHparams,
    IndexedHparams,
    constant_head,
    head,
    indexed_trunk,
    residual_head,
    trunk,
)

TRUNK = ModelSpec(
    name="deepseek2",
    fit=trunk_fit("deepseek2", "mistral4"),
    hparams=DeepseekHparams.read,
    build=trunk,
    ties=(OUTPUT_TIE,),
    min_types=(ROUTER_TYPE,),
    unread=(
        ("blk.{n}.attn_kv_b.weight", "attn_k_b and attn_v_b hold it, too, in ik_llama.cpp's files"),
    ),
    checkpoint=V3_CHECKPOINT,
    layouts=(V2_CHECKPOINT, FLASH_CHECKPOINT),
)

INDEXED = msgspec.structs.replace(
    TRUNK,
    name="deepseek32",
    fit=trunk_fit("deepseek32"),
    hparams=IndexedHparams.read,
    build=indexed_trunk,
    scaled=(*ATTENTION_SCALES, *FEED_FORWARD_SCALES, *EXPERT_SCALES, *SHARED_EXPERT_SCALES),
    unread=UNREAD_INDEXER,
    checkpoint=V32_CHECKPOINT,
    layouts=(),
)
INDEXED_GLM = msgspec.structs.replace(
    INDEXED, name="glm-dsa", fit=trunk_fit("glm-dsa"), checkpoint=DSA_CHECKPOINT
)

MTP = DrafterSpec(
    name="deepseek_mtp",
    fit=nextn_fit("deepseek2", "deepseek32", "glm-dsa"),
    build=head,
    feeds=(
        Feed(
            slot="hidden",
            taps=("hidden",),
            recycle="hidden",
            evidence="vLLM PR 45895 and ROCm/ATOM PR 1764 (DeepSeek-R1: 61.4 to 64.6 % of drafts "
            "accepted) recycle the normed state; transformers 5.23 MtpModel and llama.cpp "
            "draft-mtp give the same drafts with it",
        ),
    ),
    ties=NEXTN_TIES,
    min_types=(ROUTER_TYPE,),
    checkpoint=HEAD_CHECKPOINT,
    acceptance=(0.6, 0.95),
    evidence="DeepSeek-V3 technical report (arXiv 2412.19437), 5.4.3: the second token is accepted "
    "85 to 90 % of the time",
)

RESIDUAL_FED = as_variant(
    MTP,
    "deepseek_mtp_residual_fed",
    feeds=(Feed(slot="hidden", taps=("residual",), recycle="hidden"),),
    evidence="the trunk's state before its final norm, as llama.cpp PR 24025 "
    "describes DeepSeek's head",
)

RESIDUAL_RECYCLED = as_variant(
    MTP,
    "deepseek_mtp_residual_recycled",
    build=residual_head,
    feeds=(Feed(slot="hidden", taps=("hidden",), recycle="residual"),),
    evidence="later steps are fed the head's state before its norm, as vLLM did before PR 45895",
)

CONSTANT = as_variant(
    MTP,
    "deepseek_mtp_constant",
    build=constant_head,
    feeds=(Feed(slot="hidden", taps=("hidden",), recycle="fed"),),
    evidence="the trunk's row is fed in all steps, as the code beside the "
    "DeepSeek-R1 checkpoint does according to ROCm/ATOM PR 1764",
)


@hookimpl
def mtpcore_models() -> list[ModelSpec]:
    """Offer the trunks."""
    return [TRUNK, INDEXED, INDEXED_GLM]


@hookimpl
def mtpcore_drafters() -> list[DrafterSpec]:
    """Offer the head; then variants of its dataflow, taken only where a caller names them."""
    return [MTP, RESIDUAL_FED, RESIDUAL_RECYCLED, CONSTANT]
