"""Tensors that files of a family may lack: where they are there, they are read as by llama.cpp."""

import numpy as np
import pytest
from harness.fixtures import DATA
from harness.optional_tensors import OPTIONAL, TOKENS, write_optional

from mtpcore import Batch, Context, load_model

REFS = np.load(DATA / "optional" / "refs.npz")


def logits(path):
    with load_model(path) as model:
        context = Context(model, n_ctx=32, kv_dtype="f32", threads=1)
        return context.process(Batch.of(TOKENS, outputs="all")).logits


@pytest.mark.parametrize("family", OPTIONAL)
def test_logits_are_those_of_llama_cpp(family, tmp_path):
    wanted = REFS[family]
    made = logits(write_optional(tmp_path, family))
    assert ((made - wanted) ** 2).mean() < 1e-5 * (wanted**2).mean()
    without = logits(write_optional(tmp_path, family, with_them=False))
    assert ((without - wanted) ** 2).mean() > 1e-2 * (wanted**2).mean()
