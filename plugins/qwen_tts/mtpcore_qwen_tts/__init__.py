"""Qwen3-TTS: a talker that reads text beside speech, and a code predictor after it."""

from mtpcore.plugin import DEPTH_UNREAD, Codebooks, Feed, Fit, ModelSpec, first_of, hookimpl
from mtpcore_qwen_tts import sound
from mtpcore_qwen_tts.checkpoint import CHECKPOINT, WHOLE
from mtpcore_qwen_tts.companion import COMPANION
from mtpcore_qwen_tts.graph import TalkerHparams, code_predictor, talker


def codebooks(h: TalkerHparams) -> Codebooks:
    """Return what a frame is; its first code says where the text ends."""
    return h.codebooks()


QWEN3_TTS = ModelSpec(
    name="qwen3-tts",
    fit=Fit(
        architectures=frozenset({"qwen3tts"}),
        tensors=("token_embd.weight", "audio_embd.weight", "depth.output.weight"),
    ),
    hparams=TalkerHparams.read,
    build=talker,
    graphs=(("depth", code_predictor),),
    feeds=(
        Feed(
            slot="embeddings",
            src="llm",
            graph="depth",
            pairing="same-token",
            evidence="qwen-tts 0.1.1: past_hidden is the talker's newest state after its norm",
        ),
    ),
    ties=(first_of("depth.audio_embd.weight", "audio_embd.weight"),),
    codebooks=codebooks,
    companion=COMPANION,
    # Between its matrices the feed-forward part has values beyond F16, to which llama.cpp rounds
    # what it multiplies by a matrix of F16.
    min_types=(("a.gen.code.blk.{n}.ffn_down.weight", "F32"), *sound.LEAST),
    unread=(
        *DEPTH_UNREAD,
        ("{arch}.codec.*", "marks that stand in prompts"),
        ("{arch}.language.*", "marks that stand in prompts"),
        ("{arch}.speaker.*", "marks that stand in prompts"),
        ("{arch}.depth.proj*", "what the companion is for other programs"),
    ),
    checkpoint=CHECKPOINT,
    layouts=(WHOLE,),
)


@hookimpl
def mtpcore_models() -> list[ModelSpec]:
    """Offer the model."""
    return [QWEN3_TTS]
