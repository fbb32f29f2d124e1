"""llama.cpp as a witness: it loads the files of drafters of the families that it knows."""

import pytest
from harness import dflash, eagle3, gemma4
from harness.published import tokenizer, write_checkpoint
from harness.witness import load, needs_llama_cpp

from mtpcore.conversion import convert
from mtpcore.discovery.loading import find_demos

pytestmark = needs_llama_cpp


@pytest.mark.parametrize("name", ["demo:small", "demo:eagle3-draft", "demo:dflash-draft"])
def test_the_packaged_drafters(name):
    load(find_demos()[name])


UNKNOWN = {"four layers", "a norm for each tap", "3.1"}
"""It reads three taps, and no norm of each."""


@pytest.mark.parametrize("name", sorted(eagle3.VARIANTS.keys() - UNKNOWN))
def test_eagle3(name, tmp_path):
    load(eagle3.write_head(tmp_path, eagle3.VARIANTS[name]))


@pytest.mark.parametrize("name", [name for name, c in dflash.VARIANTS.items() if not c.passes])
def test_dflash(name, tmp_path):
    """XPress it does not know."""
    load(dflash.write_drafter(tmp_path, dflash.VARIANTS[name]))


def test_gemma4_assistant(tmp_path):
    """Without clusters: files with them it refuses, the published ones too."""
    a = gemma4.ASSISTANTS["all tokens"]
    s = gemma4.SHAPES[a.target]
    tensors = gemma4.published(s, gemma4.weights(s))
    write_checkpoint(
        tmp_path / "target", gemma4.configuration(s), tensors, tokenizer(gemma4.N_VOCAB)
    )
    write_checkpoint(tmp_path / "drafter", gemma4.assistant_config(a), gemma4.assistant_weights(a))
    path = tmp_path / "mtp-gemma.gguf"
    convert(tmp_path / "drafter", path, outtype="f16", target=tmp_path / "target")
    load(path)
