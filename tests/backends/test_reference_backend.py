"""Plans of the reference: open to new operations, closed to unknown ones; weights are shared."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants

from mtpcore.backends.base import Backend, Plan, Store
from mtpcore.backends.reference import ReferenceBackend, by_row
from mtpcore.errors import BackendError
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.graph.ops import OPS, OpRule
from mtpcore.testing import Runner, Weights


class Tensor:
    def __init__(self, values, kind=Type.F32):
        self._raw = quants.quantize(values.astype(np.float32), kind)
        self.type, self.shape = int(kind), values.shape

    def array(self):
        return quants.dequantize(self._raw, Type(self.type))

    def raw(self):
        return self._raw


RNG = np.random.default_rng(2)
TENSORS = {
    "embd.weight": Tensor(RNG.normal(size=(9, 64))),
    "w.weight": Tensor(RNG.normal(size=(10, 64))),
    "w8.weight": Tensor(RNG.normal(size=(10, 64)), Type.Q8_0),
    "experts.weight": Tensor(RNG.normal(size=(3, 10, 64)), Type.Q8_0),
}


def build(make, **options):
    g = GraphBuilder("test", TENSORS, **options)
    return g.finish(Outputs(y=make(g, g.embed(g.inputs.tokens, "embd.weight"))))


def test_protocols_hold():
    backend: Backend = ReferenceBackend()
    store: Store = backend.store([], 1, "f32")
    plan: Plan = Runner(backend, build(lambda g, x: g.scale(x, 2)), Weights(TENSORS)).plan
    assert backend.name == "reference"
    assert store.n_bytes == 0
    assert plan.program.outputs


def test_every_operation_of_the_grammar_is_defined():
    assert set(ReferenceBackend.operations) == set(OPS)


def test_rows_without_outputs():
    def make(g, x):
        return g.matmul(g.output_rows(x), "w.weight")

    made = Runner(ReferenceBackend(), build(make), Weights(TENSORS)).feed([1, 2], outputs=[])
    assert made["y"].shape == (0, 10)
    made = Runner(ReferenceBackend(), build(make), Weights(TENSORS)).feed([1, 2, 3], outputs=[0, 2])
    assert made["y"].shape == (2, 10)


def test_an_operation_of_a_test(monkeypatch):
    """A toy recurrence: a rule in the grammar and a formula are all it takes."""
    monkeypatch.setitem(
        OPS, "reverse", OpRule((1, 1), (0, 0), frozenset(), lambda x, w, a: ((x[0], "f32"),), "")
    )
    monkeypatch.setattr(ReferenceBackend, "operations", dict(ReferenceBackend.operations))
    program = build(lambda g, x: g.add_node("reverse", [x])[0])
    with pytest.raises(BackendError, match="reverse"):
        Runner(ReferenceBackend(), program, Weights(TENSORS))
    ReferenceBackend.register("reverse", by_row(lambda x: x[::-1]))
    made = Runner(ReferenceBackend(), program, Weights(TENSORS)).feed([4])["y"]
    assert np.array_equal(made[0], TENSORS["embd.weight"].array()[4][::-1])


def test_weights_are_loaded_once_for_all_plans():
    source = Weights(TENSORS)
    program = build(lambda g, x: g.matmul(x, "w.weight"))
    Runner(ReferenceBackend(), program, source)
    held = dict(source.packed)
    Runner(ReferenceBackend(), program, source)
    assert all(source.packed[key] is value for key, value in held.items())
    assert len(source.packed) == len(held) == 2


@pytest.mark.parametrize("weight", ["w.weight", "w8.weight"])
def test_activations_are_rounded_where_kernels_do_so(weight):
    program = build(lambda g, x: g.matmul(x, weight))
    plain = Runner(ReferenceBackend("f64"), program, Weights(TENSORS)).feed([3])["y"]
    rounded = Runner(ReferenceBackend("f64", quantise_activations=True), program, Weights(TENSORS))
    differs = np.abs(rounded.feed([3])["y"] - plain).max()
    assert differs == 0 if weight == "w.weight" else 1e-3 < differs < 0.5


def test_experts_round_activations_too():
    def make(g, x):
        ids, _ = g.route(x, "w.weight", n_used=1)
        return g.merge_heads(g.expert_matmul(x, ids, "experts.weight"))

    g = GraphBuilder("test", {**TENSORS, "r.weight": Tensor(np.eye(3, 64))})
    x = g.embed(g.inputs.tokens, "embd.weight")
    ids, _ = g.route(x, "r.weight", n_used=2)
    program = g.finish(Outputs(y=g.merge_heads(g.expert_matmul(x, ids, "experts.weight"))))
    made = [
        Runner(ReferenceBackend("f64", q), program, Weights(g.tensors)).feed([5])["y"]
        for q in (False, True)
    ]
    assert 1e-3 < np.abs(made[0] - made[1]).max() < 0.5


def test_nan_weights_flow_through():
    tensors = {**TENSORS, "w.weight": Tensor(np.full((10, 64), np.nan))}
    program = build(lambda g, x: g.matmul(x, "w.weight"))
    assert np.isnan(Runner(ReferenceBackend(), program, Weights(tensors)).feed([0])["y"]).all()


def test_errors():
    with pytest.raises(BackendError, match="f32, f64"):
        ReferenceBackend("f16")
    with pytest.raises(BackendError, match="f16, f32"):
        ReferenceBackend().store([], 1, "q8")
