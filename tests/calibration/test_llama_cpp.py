"""The sums and counts of ``llama-imatrix``, of trained models and a text.

``tests/data/llama_cpp/importance.npz`` holds them (``tools/llama_cpp_imatrix.py``).
"""

from contextlib import nullcontext
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from harness.fixtures import model_file

from mtpcore.calibration.collecting import collect_importance
from mtpcore.calibration.settings import ImportanceSettings
from mtpcore.conversion.importance_file import read_sums

DATA = Path(__file__).parents[1] / "data" / "llama_cpp" / "importance.npz"
NEAR = 3e-4
"""Of the length of the difference, beside that of the sums: here keys and values are F16."""


@cache
def witness():
    with np.load(DATA) as file:
        return dict(file)


def watch(_title):
    return nullcontext(lambda done, total: None)


@pytest.mark.parametrize("name", ["glm-11", "ds-12", "qwen35moe-17"])
def test_sums_and_counts_are_those_of_llama_imatrix(name, tmp_path):
    """Experts by the same routes, heads' matrices (MLA), recurrent layers, and the perplexity."""
    (tmp_path / "text").write_text(str(witness()["text"]))
    n_chunks, size = witness()["sizes"].tolist()
    settings = ImportanceSettings(chunk_size=size, n_chunks=n_chunks, with_output=True, heads=False)
    made = collect_importance(
        *(model_file(name, "f32"), [tmp_path / "text"], tmp_path / "a", settings, watch), threads=1
    )
    found = read_sums(tmp_path / "a")
    prefix = f"{name}/sums/"
    wanted = {k.removeprefix(prefix): v for k, v in witness().items() if k.startswith(prefix)}
    assert wanted.keys() == found.sums.keys()
    for tensor, sums in wanted.items():
        counts = witness()[f"{name}/counts/{tensor}"]
        np.testing.assert_array_equal(counts + 0 * found.counts[tensor], found.counts[tensor])
        difference = np.linalg.norm(sums.ravel() - found.sums[tensor].ravel())
        assert difference < NEAR * np.linalg.norm(sums), tensor
    assert made.perplexity == pytest.approx(float(witness()[f"{name}/perplexity"]), rel=1e-4)
    assert found.chunk_size == size
    assert found.n_chunks == n_chunks
