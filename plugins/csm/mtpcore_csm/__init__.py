"""CSM, the Conversational Speech Model: a backbone, and a depth decoder of codes after it."""

from mtpcore.plugin import (
    DEPTH_UNREAD,
    CodebookHparams,
    Codebooks,
    Feed,
    Fit,
    ModelSpec,
    first_of,
    hookimpl,
)
from mtpcore_csm.checkpoint import CHECKPOINT, TORCHTUNE
from mtpcore_csm.graph import backbone, depth


def codebooks(h: CodebookHparams) -> Codebooks:
    """Return what a frame is; its last code is not looked at where it ends."""
    return h.codebooks(n_end=h.n_codebooks - 1)


CSM = ModelSpec(
    name="csm",
    fit=Fit(
        architectures=frozenset({"csm"}),
        tensors=("token_embd.weight", "output.weight", "depth.output.weight"),
    ),
    hparams=CodebookHparams.read,
    build=backbone,
    graphs=(("depth", depth),),
    feeds=(
        Feed(
            slot="embeddings",
            src="llm",
            graph="depth",
            pairing="same-token",
            evidence="transformers 5.24 CsmGenerationMixin: the depth decoder's first row is the "
            "backbone's newest state after its norm",
        ),
    ),
    ties=(
        first_of("audio_embd.weight", "depth.audio_embd.weight"),
        first_of("depth.audio_embd.weight", "audio_embd.weight"),
    ),
    codebooks=codebooks,
    unread=DEPTH_UNREAD,
    checkpoint=CHECKPOINT,
    layouts=(TORCHTUNE,),
)


@hookimpl
def mtpcore_models() -> list[ModelSpec]:
    """Offer the model."""
    return [CSM]
