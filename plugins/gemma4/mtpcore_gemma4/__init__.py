"""Gemma 4 (``gemma4``): dense, with experts, and the E-models."""

from mtpcore.plugin import OUTPUT_TIE, ROUTER_TYPE, Fit, ModelSpec, hookimpl
from mtpcore_gemma4.checkpoint import CHECKPOINT
from mtpcore_gemma4.graph import trunk
from mtpcore_gemma4.hparams import GemmaHparams

GEMMA4 = ModelSpec(
    name="gemma4",
    fit=Fit(
        architectures=frozenset({"gemma4"}),
        tensors=("token_embd.weight", "output_norm.weight", "blk.0.post_ffw_norm.weight"),
    ),
    hparams=GemmaHparams.read,
    build=trunk,
    ties=(OUTPUT_TIE,),
    min_types=(ROUTER_TYPE,),
    checkpoint=CHECKPOINT,
)


@hookimpl
def mtpcore_models() -> list[ModelSpec]:
    """Offer the trunk."""
    return [GEMMA4]
