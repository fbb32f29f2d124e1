"""Programs that make a part of an output."""

import numpy as np
import pytest

from mtpcore import GraphError
from mtpcore.gguf import TensorRows, open_model_file, write_model_file
from mtpcore.graph import GraphBuilder, Outputs, slice_output


class Shape:
    def __init__(self, *shape):
        self.shape = shape


TENSORS = {"table": Shape(10, 8), "out": Shape(10, 8), "bias": Shape(10)}


def program(after=lambda g, x: x, bias=None, **rows):
    g = GraphBuilder("toy", TENSORS)
    x = g.embed(g.inputs.tokens, "table")
    logits = after(g, g.matmul(g.output_rows(x), "out", bias))
    return g.finish(Outputs(logits=logits, **{name: make(g, x) for name, make in rows.items()}))


def test_the_product_and_what_follows_it_shrink():
    whole = program(lambda g, x: g.scale(g.activation(x, "tanh"), 2.0), bias="bias")
    sliced, cut = slice_output(whole, "logits", 3, "[few]")
    assert cut == ["out", "bias"]
    assert sliced.shape("logits") == ("n_outputs", 3)
    changed = [
        node for node, before in zip(sliced.nodes, whole.nodes, strict=True) if node != before
    ]
    assert [node.op for node in changed] == ["matmul"]
    assert [(w.tensor, w.shape) for w in changed[0].weights] == [
        ("out[few]", (3, 8)),
        ("bias[few]", (3,)),
    ]
    assert len([one for one in sliced.values if one not in whole.values]) == 3


def test_what_is_not_made_entry_by_entry_is_refused():
    with pytest.raises(GraphError, match="in part"):
        slice_output(program(lambda g, x: g.rms_norm(x, None, 1e-5)), "logits", 3, "")


def test_logits_that_the_graph_reads_again_are_refused():
    def after(g, x):
        y = g.scale(x, 2.0)
        g.rms_norm(x, None, 1e-5)
        return y

    with pytest.raises(GraphError, match="in part"):
        slice_output(program(after), "logits", 3, "")


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_rows_of_a_tensor_have_its_values(tmp_path, kind):
    values = np.random.default_rng(1).normal(size=(20, 64)).astype(np.float32)
    write_model_file(tmp_path / "one.gguf", "toy", {}, {"a": values}, {"a": kind})
    rows = np.array([3, 4, 11, 19])
    with open_model_file(tmp_path / "one.gguf") as file:
        whole = file.tensors["a"]
        few = TensorRows("few", whole, rows)
        assert (few.shape, few.type, few.n_bytes) == ((4, 64), whole.type, 4 * whole.row_bytes)
        assert np.array_equal(few.array(), whole.array()[rows])
        assert np.array_equal(few.rows(1, 3), whole.array()[rows[1:3]])
        few.release()
        assert np.array_equal(few.raw(), whole.raw()[rows])
