"""Estimated sizes of packed weights against packed ones."""

import pytest
from gguf import GGMLQuantizationType
from harness.fixtures import model_file
from toy import head_tensors, load, trunk_tensors

from mtpcore import Context, link, load_model
from mtpcore.backends.cpu.estimate import estimate_packed_bytes


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1"])
@pytest.mark.parametrize("output", [False, True])
def test_estimates_are_what_packing_takes(tmp_path, kind, output):
    tensors = trunk_tensors(output=output) | head_tensors()
    chosen = {n: kind if t.ndim > 1 else "F32" for n, t in tensors.items()}
    model = load(tmp_path, tensors, heads=1, types=chosen)
    cross = link(Context(model, 64))
    cross.prepare()
    programs = [context.program for context in cross.contexts.values()]
    packed = {}
    for (*_, tensor), made in model.packed.items():
        packed[tensor] = packed.get(tensor, 0) + made.nbytes
    assert estimate_packed_bytes(programs, model.tensors) == packed
    assert model.tensors["blk.0.mix.weight"].type == GGMLQuantizationType[kind]


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_estimates_of_stacks_are_what_packing_takes(kind):
    """Experts, and the matrices of heads."""
    with load_model(model_file("ds-12", kind)) as model:
        cross = link(Context(model, 64))
        cross.prepare()
        programs = [context.program for context in cross.contexts.values()]
        packed = {}
        for (*_, tensor), made in model.packed.items():
            n_bytes = sum(one.nbytes for one in (made if isinstance(made, list) else [made]))
            packed[tensor] = packed.get(tensor, 0) + n_bytes
        assert estimate_packed_bytes(programs, model.tensors) == packed
        assert len(model.packed["cpu", "stack", "blk.4.attn_k_b.weight"]) == 8
