"""Gemma 3n, Gemma 4, and the assistant of the latter, which reads the KV cache of its target."""

from mtpcore.plugin import (
    ATTENTION_SCALES,
    EXPERT_SCALES,
    FEED_FORWARD_SCALES,
    OUTPUT_TIE,
    ROUTER_TYPE,
    DrafterSpec,
    Feed,
    Fit,
    ModelSpec,
    SharedMemory,
    first_of,
    hookimpl,
    trunk_fit,
)
from mtpcore_gemma4.assistant import AssistantHparams, assistant, layers_of_target
from mtpcore_gemma4.checkpoint import ASSISTANT_CHECKPOINT, CHECKPOINT, UNIFIED_CHECKPOINT
from mtpcore_gemma4.gemma3n import Gemma3nHparams, gemma3n_trunk
from mtpcore_gemma4.gemma3n_checkpoint import CHECKPOINT as GEMMA3N_CHECKPOINT
from mtpcore_gemma4.graph import trunk
from mtpcore_gemma4.hparams import GemmaHparams
from mtpcore_gemma4.response_template import RESPONSE_TEMPLATE

_SHARES = "the layer reads what another one stores"

GEMMA4 = ModelSpec(
    name="gemma4",
    fit=trunk_fit("gemma4", also=("blk.0.post_ffw_norm.weight",)),
    hparams=GemmaHparams.read,
    build=trunk,
    ties=(OUTPUT_TIE,),
    scaled=(*ATTENTION_SCALES, *FEED_FORWARD_SCALES, *EXPERT_SCALES),
    min_types=(ROUTER_TYPE,),
    checkpoint=CHECKPOINT,
    layouts=(UNIFIED_CHECKPOINT,),
    response_template=RESPONSE_TEMPLATE,
)

GEMMA3N = ModelSpec(
    name="gemma3n",
    fit=trunk_fit("gemma3n", also=("altup_proj.weight",)),
    hparams=Gemma3nHparams.read,
    build=gemma3n_trunk,
    ties=(OUTPUT_TIE,),
    min_types=(
        # As llama.cpp keeps them.
        ("blk.{n}.altup_*_coef.weight", "F32"),
        ("altup_*.weight", "F16"),
        ("blk.{n}.altup_router.weight", "F16"),
        ("blk.{n}.laurel_*.weight", "F16"),
        ("per_layer_model_proj.weight", "F16"),
    ),
    unread=(
        ("blk.{n}.attn_k.weight", _SHARES),
        ("blk.{n}.attn_v.weight", _SHARES),
        ("blk.{n}.attn_k_norm.weight", _SHARES),
    ),
    checkpoint=GEMMA3N_CHECKPOINT,
)

ASSISTANT = DrafterSpec(
    name="gemma4_assistant",
    fit=Fit(
        architectures=frozenset({"gemma4-assistant"}),
        tensors=("nextn.pre_projection.weight", "nextn.post_projection.weight"),
        targets=frozenset({"gemma4"}),
        sidecars=("mtp-*.gguf",),
    ),
    standalone=True,
    hparams=AssistantHparams.read,
    build=assistant,
    feeds=(
        Feed(
            slot="hidden",
            taps=("hidden",),
            recycle="hidden",
            evidence="transformers 5.24 (SinglePositionMultiTokenCandidateGenerator) and llama.cpp "
            "join the last token's embedding with the target's normed state before it, and recycle "
            "the projected state",
        ),
    ),
    ties=(first_of("target_embd.weight", "target:token_embd.weight"),),
    shared_memory=SharedMemory(layers=layers_of_target),
    min_types=(("masked_embd_centroids.weight", "F32"),),
    checkpoint=ASSISTANT_CHECKPOINT,
    acceptance=(0.5, 0.9),
    evidence="random models: drafts and logits are those of transformers' assistant",
)


@hookimpl
def mtpcore_models() -> list[ModelSpec]:
    """Offer the trunks."""
    return [GEMMA3N, GEMMA4]


@hookimpl
def mtpcore_drafters() -> list[DrafterSpec]:
    """Offer the assistant."""
    return [ASSISTANT]
