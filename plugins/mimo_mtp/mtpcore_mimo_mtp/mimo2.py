"""MiMo-V2-Flash, V2.5 and V2.5-Pro (``mimo2``): what trunk and heads declare."""

from mtpcore.plugin import (
    NEXTN_TIES,
    OUTPUT_TIE,
    ROUTER_TYPE,
    DrafterSpec,
    Feed,
    Heads,
    ModelSpec,
    as_variant,
    first_of,
    nextn_fit,
    trunk_fit,
)
from mtpcore_mimo_mtp.checkpoint import FLASH_CHECKPOINT, HEAD_CHECKPOINT, TRUNK_CHECKPOINT
from mtpcore_mimo_mtp.graph import Mimo2Hparams, head, trunk

HEAD_NORM = "blk.{n}.nextn.shared_head_norm.weight"
TIES = (
    *(tie for tie in NEXTN_TIES if tie.tensor != HEAD_NORM),
    first_of(HEAD_NORM, "blk.{n}.layer_output_norm.weight", "output_norm.weight"),
)

MIMO2 = ModelSpec(
    name="mimo2",
    fit=trunk_fit("mimo2"),
    hparams=Mimo2Hparams.read,
    build=trunk,
    ties=(OUTPUT_TIE,),
    min_types=(ROUTER_TYPE,),
    checkpoint=TRUNK_CHECKPOINT,
    layouts=(FLASH_CHECKPOINT,),
)

MIMO2_MTP = DrafterSpec(
    name="mimo2_mtp",
    fit=nextn_fit("mimo2", also=("blk.{n}.attn_qkv.weight",)),
    build=head,
    feeds=(
        Feed(
            slot="hidden",
            taps=("residual",),
            recycle="residual",
            evidence="llama.cpp's draft-mtp and a PyTorch restatement give the same drafts with "
            "the states before the norms in and recycled; SGLang feeds the state before the norm",
        ),
    ),
    ties=TIES,
    heads=Heads(order="each-step"),
    checkpoint=HEAD_CHECKPOINT,
    acceptance=(0.5, 0.95),
    evidence="a trained 3 M-parameter model of this shape: llama.cpp accepts 136 of 240 first "
    "drafts, the restatement 136 of 239",
)

TARGET_FED = as_variant(
    MIMO2_MTP,
    "mimo2_mtp_target_fed",
    heads=Heads(order="each-step", hidden_from="target"),
    evidence="SGLang's multi-layer worker: every head reads the target's rows, and each head's "
    "tokens lie one place further on",
)

FIRST_HEAD = as_variant(
    MIMO2_MTP,
    "mimo2_mtp_first_head",
    feeds=(Feed(slot="hidden", taps=("residual",), recycle="hidden"),),
    heads=Heads(),
    evidence="vLLM's mimo_v2_mtp: the first head alone, fed its own normed state",
)
