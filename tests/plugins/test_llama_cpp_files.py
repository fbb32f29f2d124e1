"""Files that llama.cpp wrote are the models that it was given, in every family that it knows."""

import numpy as np
import pytest
from harness.peer_headers import CASES, HEADERS, blocks_of, tensors_of, write_filled, write_original
from harness.same_model import assert_same, outputs

from mtpcore.gguf import open_model_file, write_model_file

SPREAD = {"Q8_0": 0.02, "Q8_0 split": 0.02, "saved": 0}
"""Mean square of what quantisation changes in logits, beside that of the logits, at most."""


@pytest.fixture(scope="module")
def headers():
    with np.load(HEADERS) as file:
        return {name: file[name].tobytes() for name in file}


@pytest.mark.parametrize(("way", "family"), CASES)
def test_a_file_is_its_original(way, family, headers, tmp_path):
    """With the original's weights: to the last bit if it is of the same types, else nearly."""
    original = write_original(tmp_path, way, family)
    parts = [header for name, header in headers.items() if name.startswith(f"{way}/{family}/")]
    entries = {entry.name: entry for header in parts for entry in tensors_of(header)}
    types = {name: entry.type for name, entry in entries.items()}
    with open_model_file(original) as file:
        blocks = blocks_of(file, types)
        same = tmp_path / "same.gguf"
        metadata = {k: v for k, v in file.metadata.items() if not k.startswith("split.")}
        write_model_file(same, file.architecture, metadata, blocks, types)
    n = len(parts)
    names = [f"made-{i:05}-of-{n:05}.gguf" if n > 1 else "made.gguf" for i in range(1, n + 1)]
    paths = [tmp_path / name for name in names]
    for header, path in zip(parts, paths, strict=True):
        write_filled(header, blocks, path)
    found = outputs(paths[:1])
    assert_same(found, outputs([same]))
    if way in SPREAD:
        logits = outputs([original])[0]
        error = np.square(found[0] - logits).mean()
        assert error <= SPREAD[way] * np.square(logits).mean()
