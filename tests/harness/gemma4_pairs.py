"""Model files of Gemma 4's targets with their assistants."""

from pathlib import Path

from harness.gemma4 import (
    ASSISTANTS,
    N_VOCAB,
    SHAPES,
    assistant_config,
    assistant_weights,
    configuration,
    published,
    weights,
)
from harness.published import tokenizer, write_checkpoint
from mtpcore.conversion import convert


def write_pair(folder: Path, name: str, outtype: str = "f32") -> tuple[Path, Path]:
    """Write the checkpoints of a target and its assistant, and convert them; return both files."""
    a = ASSISTANTS[name]
    s = SHAPES[a.target]
    write_checkpoint(
        folder / "target", configuration(s), published(s, weights(s)), tokenizer(N_VOCAB)
    )
    write_checkpoint(folder / "drafter", assistant_config(a), assistant_weights(a))
    target, drafter = folder / "gemma.gguf", folder / "mtp-gemma.gguf"
    convert(folder / "target", target, outtype=outtype)
    convert(folder / "drafter", drafter, outtype=outtype, target=folder / "target")
    return target, drafter
