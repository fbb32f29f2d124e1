"""P-EAGLE and PARD: drafters in files of their own whose rows draft in parallel, one token each."""

from mtpcore.plugin import (
    OUTPUT_TIE,
    Block,
    DrafterSpec,
    Feed,
    Fit,
    FusedHparams,
    Hparams,
    Key,
    first_of,
    hookimpl,
)
from mtpcore_peagle.checkpoint import PARD_CHECKPOINT, PEAGLE_CHECKPOINT
from mtpcore_peagle.graph import head, model

_BLOCK = Block(size=Key("{arch}.block_size", 8), mask="tokenizer.ggml.mask_token_id")

PEAGLE = DrafterSpec(
    name="peagle",
    fit=Fit(
        architectures=frozenset({"peagle"}),
        tensors=("fc.weight", "mask_hidden.weight", "blk.0.attn_norm_2.weight"),
        sidecars=("peagle-*.gguf", "*-draft.gguf"),
    ),
    standalone=True,
    hparams=FusedHparams.read,
    shape="block",
    block=_BLOCK,
    build=head,
    feeds=(
        Feed(
            slot="taps",
            taps=("layer_input:{arch}.target_layers",),
            pairing="next-token",
            mask="mask_hidden.weight",
            evidence="vLLM feeds the first row as EAGLE-3's, the others the learned state, which "
            "passes through fc as the target's rows do",
        ),
    ),
    ties=(
        first_of("token_embd.weight", "target:token_embd.weight"),
        first_of("output.weight", "target:output.weight", "target:token_embd.weight"),
    ),
    vocabulary="d2t",
    limit=16,
    min_types=(("fc.weight", "Q8_0"), ("mask_hidden.weight", "F32")),
    checkpoint=PEAGLE_CHECKPOINT,
    acceptance=(0.45, 0.8),
    fitting="mtpcore_peagle.fitting",
    evidence="arXiv 2602.01469; vLLM's pull request 32628 has first-draft rates of 64 beside "
    "EAGLE-3's 73 %",
)

PARD = DrafterSpec(
    name="pard",
    fit=Fit(
        architectures=frozenset({"pard"}),
        tensors=("token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight"),
        sidecars=("pard-*.gguf",),
    ),
    standalone=True,
    hparams=Hparams.read,
    shape="block",
    block=_BLOCK,
    build=model,
    ties=(OUTPUT_TIE,),
    limit=16,
    checkpoint=PARD_CHECKPOINT,
    acceptance=(0.4, 0.8),
    evidence="AMD's PARD: the last tokens and k - 1 mask tokens in one pass of a small model, "
    "rotated and masked as text; vLLM's pull request 32887 reads it so",
)


@hookimpl
def mtpcore_drafters() -> list[DrafterSpec]:
    """Offer both."""
    return [PEAGLE, PARD]
