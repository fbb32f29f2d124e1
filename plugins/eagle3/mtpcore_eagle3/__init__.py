"""EAGLE-3: a drafter in a file of its own, fed by three layers of any target."""

from mtpcore.plugin import DrafterSpec, Feed, Fit, first_of, hookimpl
from mtpcore_eagle3.checkpoint import CHECKPOINT, NEMO, REFERENCE
from mtpcore_eagle3.graph import Eagle3Hparams, fusion, head

EAGLE3 = DrafterSpec(
    name="eagle3",
    fit=Fit(
        architectures=frozenset({"eagle3"}),
        tensors=("fc.weight", "blk.0.attn_norm_2.weight", "output_norm.weight"),
        sidecars=("eagle3-*.gguf", "*-draft.gguf"),
    ),
    standalone=True,
    hparams=Eagle3Hparams.read,
    build=head,
    graphs=(("fusion", fusion),),
    feeds=(
        Feed(
            slot="taps",
            graph="fusion",
            taps=("layer_input:{arch}.target_layers",),
            pairing="same-token",
            evidence="the reference, vLLM and llama.cpp read the residual stream that enters the "
            "listed layers; taps of a Llama of 8 layers agree with transformers 5.23",
        ),
        Feed(
            slot="fused",
            src="fusion",
            taps=("fused",),
            pairing="next-token",
            recycle="recycled",
            evidence="the reference, vLLM, SpecForge and llama.cpp pair token p with row p - 1 and "
            "recycle the layer's output without fusing it again, normed with norm_output alone",
        ),
    ),
    ties=(
        first_of("token_embd.weight", "target:token_embd.weight"),
        first_of("output.weight", "target:output.weight", "target:token_embd.weight"),
    ),
    vocabulary="d2t",
    min_types=(("fc.weight", "Q8_0"),),
    checkpoint=CHECKPOINT,
    layouts=(REFERENCE, NEMO),
    acceptance=(0.55, 0.85),
    fitting="mtpcore_eagle3.fitting",
    evidence="nebius' model card: 2.77 to 5.08 tokens a pass with seven drafts, which even rates "
    "of 0.65 to 0.87 would give; a head of 1.1 M parameters on a target of 5.5 M: 67 of 120 first "
    "drafts accepted, in llama.cpp as here",
)


@hookimpl
def mtpcore_drafters() -> list[DrafterSpec]:
    """Offer the head."""
    return [EAGLE3]
