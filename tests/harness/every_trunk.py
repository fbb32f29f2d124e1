"""A small random model of every trunk with a graph of its own, from a published checkpoint."""

from pathlib import Path

from harness import csm, gemma4, gpt_oss, lfm2, published_families, qwen_tts, t5
from harness.published import tokenizer, write_checkpoint
from harness.sound_checkpoints import write_sound
from mtpcore.conversion import convert
from mtpcore.discovery.registry import describe_plugins

_KNOWN = published_families.known().keys()
FAMILIES = sorted(
    spec.name
    for p in describe_plugins()
    if p.first_party
    for spec in p.models
    if spec.checkpoint and spec.checkpoint.architectures.isdisjoint(_KNOWN)
)
"""All but variants of one layer, of which ``published_families`` has models."""
SOUND = {
    "llama": "llama with experts",
    "qwen2": "qwen2",
    "qwen3": "qwen3, tied",
    "qwen3moe": "qwen3 with some experts",
    "deepseek2": "V3, YaRN",
    "glm4moe": "glm",
    "mimo": "mimo",
    "mimo2": "mimo2",
    "qwen35": "qwen3.5",
    "qwen35moe": "qwen3.5 with experts",
    "qwen3next": "qwen3-next",
}
"""Families that ``sound_checkpoints`` writes, by the names there."""


def write_trunk(folder: Path, family: str) -> Path:
    """Write a family's checkpoint and convert it; return the model file."""
    if family in SOUND:
        write_sound(folder / "hf", SOUND[family])
    else:
        config, tensors, n_vocab = _published(family)
        write_checkpoint(folder / "hf", config, tensors, tokenizer(n_vocab))
    convert(folder / "hf", folder / f"{family}.gguf", outtype="f32")
    return folder / f"{family}.gguf"


def _published(family):
    """Return configuration, tensors and size of the vocabulary."""
    if family == "gemma4":
        s = gemma4.SHAPES["embeddings by layer, sharing"]
        return gemma4.configuration(s), gemma4.published(s, gemma4.weights(s)), gemma4.N_VOCAB
    if family.startswith("lfm2"):
        s = lfm2.SHAPES["dense" if family == "lfm2" else "experts"]
        return lfm2.configuration(s), lfm2.weights(s), lfm2.N_VOCAB
    if family == "gpt_oss":
        s = gpt_oss.SHAPES["plain experts"]
        return gpt_oss.configuration(s), gpt_oss.published(s, gpt_oss.weights(s)), gpt_oss.N_VOCAB
    if family == "t5":
        s = t5.SHAPES["1.1"]
        return t5.configuration(s), t5.weights(s), t5.N_VOCAB
    made = {"csm": csm, "qwen3-tts": qwen_tts}[family]
    return made.configuration(), made.weights(), made.N_TEXT
