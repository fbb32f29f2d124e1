"""Programs that hand out what matrices are multiplied with."""

import numpy as np
import pytest
from programs import random_tensors

from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.graph import GraphBuilder, Outputs, expose_products
from mtpcore.testing import Weights

SHAPES = {
    "table": (10, 8),
    "router": (4, 8),
    "gate": (4, 6, 8),
    "up": (4, 6, 8),
    "down": (4, 8, 6),
    "heads": (2, 3, 4),
    "after": (8, 6),
    "out": (10, 8),
}
TENSORS = {name.removesuffix(".weight"): t for name, t in random_tensors(1, **SHAPES).items()}


def program():
    g = GraphBuilder("toy", TENSORS)
    x = g.embed(g.inputs.tokens, "table")
    ids, shares = g.route(x, "router", n_used=2)
    gated = g.gated(g.expert_matmul(x, ids, "gate"), g.expert_matmul(x, ids, "up"), "silu")
    y = g.mix(g.expert_matmul(gated, ids, "down"), shares)
    z = g.merge_heads(g.head_matmul(g.split_heads(y, 2), "heads"))
    last = g.output_rows(g.matmul(z, "after"))
    return g.finish(Outputs(logits=g.matmul(last, "out"), y=y))


def read_by(exposed):
    return {tuple(weight.wanted for weight in one.weights): one for one in exposed}


def test_what_several_matrices_read_is_handed_out_once():
    before = program()
    after, exposed = expose_products(before, logits=True)
    found = read_by(exposed)
    assert set(found) == {
        ("router",), ("gate", "up"), ("down",), ("heads",), ("after",), ("out",),
    }  # fmt: skip
    assert found["router",].rows == found["gate", "up"].rows  # by which other ids go
    assert found["down",].ids == found["gate", "up"].ids
    assert {one.read for one in exposed} == {"one", "ids", "heads"}
    assert all((one.ids is None) == (one.read != "ids") for one in exposed)
    assert after.shape(found["down",].rows) == ("n_tokens", 2, 6)
    assert after.shape(found["out",].rows) == ("n_tokens", 8)
    assert after.shape("logits") == ("n_tokens", 10)
    assert before == program()  # which nothing changed


def test_what_logits_alone_need_falls_away():
    after, exposed = expose_products(program(), logits=False)
    assert "logits" not in after.outputs
    assert ("out",) in read_by(exposed)
    assert all(weight.wanted != "out" for node in after.nodes for weight in node.weights)
    assert any(node.name == "after" for node in after.nodes)  # whose product "out" reads


@pytest.mark.parametrize("backend", [CpuBackend(), ReferenceBackend()])
def test_rows_and_ids_are_those_that_products_read(backend):
    """The sums that the products themselves give, made again of what is handed out."""
    values = {name: tensor.array().astype(np.float64) for name, tensor in TENSORS.items()}
    after, exposed = expose_products(program(), logits=True)
    plan = backend.plan(after, Weights(TENSORS), n_batch=4, n_ctx=8, threads=1, stores=[])
    tokens = np.array([3, 1, 7], np.int32)
    places = np.arange(3, dtype=np.int32)
    batch = CheckedBatch(
        tokens=tokens,
        positions=places[:, None],
        seq=np.zeros(3, np.int32),
        place=places,
        outputs=np.zeros(0, np.int32),
    )
    made = {name: np.asarray(rows) for name, rows in plan.run(batch, None).items()}
    found = read_by(exposed)

    def rows(*names):
        return made[found[names].rows].astype(np.float64)

    x, ids = values["table"][tokens], made[found["down",].ids]
    np.testing.assert_allclose(rows("gate", "up"), x, rtol=1e-6)
    best = np.argsort(-(x @ values["router"].T), axis=1)[:, :2]
    assert ids.dtype == np.int32
    np.testing.assert_array_equal(ids, best)
    gate, up = (np.einsum("trij,tj->tri", values[name][best], x) for name in ("gate", "up"))
    np.testing.assert_allclose(rows("down"), gate / (1 + np.exp(-gate)) * up, rtol=1e-4, atol=1e-5)
    y = made["y"].reshape(3, 2, 4)
    np.testing.assert_allclose(rows("heads"), y, rtol=1e-6)
    z = np.einsum("hij,thj->thi", values["heads"], y).reshape(3, 6)
    np.testing.assert_allclose(rows("after"), z, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(made["logits"], rows("out") @ values["out"].T, rtol=1e-4, atol=1e-4)
