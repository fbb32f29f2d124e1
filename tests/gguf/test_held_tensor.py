"""Tensors in memory: the smallest type that holds all values."""

import numpy as np
import pytest

from mtpcore.gguf import write_model_file
from mtpcore.gguf.file import open_model_file
from mtpcore.gguf.held_tensor import HeldTensor
from mtpcore.gguf.types import BF16, F16, F32


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0.0, -0.0, 1.5, 2.0**-24, 65504.0], F16),  # half precision's smallest and largest
        ([1.0 + 2.0**-7, 2.0**-40, -(2.0**100)], BF16),
        ([1.0 + 2.0**-10, 2.0**100], F32),
        ([1.0 + 2.0**-20], F32),
        ([65520.0], F32),  # rounds to infinity
        ([1.0, 2.0**-25], BF16),
    ],
)
def test_the_smallest_type_that_holds_all_values(tmp_path, values, kind):
    write_model_file(tmp_path / "m.gguf", "llama", {}, {"w": np.ones((1, 4), np.float32)})
    origin = open_model_file(tmp_path / "m.gguf").tensors["w"]
    given = np.array([values, values], np.float32)
    held = HeldTensor.smallest("one", given, origin)
    assert (held.name, held.type, held.shape) == ("one", kind, given.shape)
    assert held.array().tobytes() == given.tobytes()
    assert held.n_bytes == given.size * (4 if kind == F32 else 2)
    assert held.path == origin.path
