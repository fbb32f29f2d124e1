"""Each matrix that ``quantize`` would weigh is multiplied in a graph that reads the text."""

import zlib

import pytest
from harness import architectures, every_trunk

from mtpcore.calibration.collecting import find_missing
from mtpcore.discovery.registry import registry

UNREAD = {
    "cogvlm-dense": "vis_",  # for rows of images
    "deepseek32-moe": "indexer",  # which chooses among tokens in long texts
    "dots3note-moe": "indexer",
    "glm-dsa-moe": "indexer",
    "gemma3n-dense": "attn_",  # of layers that read others' keys and values
    "hy_v3-moe": "ffn_",  # dense matrices beside experts, which are not used
    "qwen3next-moe": "ssm_in",  # another spelling of matrices that are there
    "csm": "depth.",  # which reads codes alone
    "qwen3-tts": ("depth.", "audio_"),
}
"""What parts of names all matrices have that are read by no text."""
SOME = [
    name
    for name in architectures.NAMES
    if (zlib.crc32(name.encode()) % 6 == 0 or name in UNREAD)
    and architectures.architecture_of(architectures.header(name)) in registry().architectures
]
"""Files of llama.cpp's generator of every sixth architecture; the others take a minute."""


def lacking(name, path, read_file):
    """Return the matrices without weights that should have some."""
    with read_file(path, n_chunks=2, perplexity=False) as (model, total):
        parts = UNREAD.get(name, ())
        parts = (parts,) if isinstance(parts, str) else parts
        missing = find_missing(model, total)
        assert bool(missing) == bool(parts)
        return [one for one in missing if not any(part in one for part in parts)]


@pytest.mark.parametrize("name", every_trunk.FAMILIES)
def test_trunks_of_their_own(name, tmp_path, read_file):
    assert lacking(name, every_trunk.write_trunk(tmp_path, name), read_file) == []


@pytest.mark.parametrize("name", SOME)
def test_architectures_of_llama_cpp(name, tmp_path, read_file):
    path = architectures.write_model(architectures.header(name), tmp_path / "model.gguf")
    assert lacking(name, path, read_file) == []
