"""Whatever of a file is missing or miscounted: a model that tells what it holds, or one error."""

import tempfile
from pathlib import Path

import numpy as np
import toy
from harness.search import searching
from hypothesis import example, given
from hypothesis import strategies as st

from mtpcore.errors import MtpcoreError

TRUNK = toy.trunk_tensors()
TWO_HEADS = toy.head_tensors() | toy.head_tensors(n=toy.N_LAYERS + 1)
WHOLE = TRUNK | TWO_HEADS


@searching(60)
@given(
    dropped=st.sets(st.sampled_from(sorted(WHOLE)), max_size=4),
    heads=st.integers(0, 3),
    n_blocks=st.integers(0, 6),
    mtp=st.booleans(),
)
@example(
    {f"blk.{n}.{name}.weight" for n, name in enumerate(("mix", "mix", "join", "join"))}, 0, 0, True
)
def test_any_part_of_a_file(dropped, heads, n_blocks, mtp):
    tensors = {name: values for name, values in WHOLE.items() if name not in dropped}
    with tempfile.TemporaryDirectory() as folder:
        try:
            model = toy.load(Path(folder), tensors, mtp=mtp, heads=heads, n_blocks=n_blocks)
        except MtpcoreError:
            assert dropped & {"token_embd.weight", "output_norm.weight"} or n_blocks < heads
            return
        with model:
            _check(model, tensors, mtp)


def _check(model, tensors, mtp):
    first = model.hparams.n_layers
    after = {name for name in tensors if name in TWO_HEADS}
    whole = toy.head_tensors(n=first).keys() <= tensors.keys()
    assert bool(model.drafters) == (mtp and whole)
    assert model.n_bytes == sum(tensors[name].nbytes for name in model.tensors)
    if after and first == toy.N_LAYERS:
        assert set(model.tensors) == tensors.keys() - (set() if mtp else after)
    if mtp:
        assert set(model.tensors) == tensors.keys()
    for kind in ("llm", "draft"):
        try:
            program = model.program(kind)
        except MtpcoreError:
            continue
        for name in program.weights():
            assert np.array_equal(model.tensors[name].array(), tensors[name])
