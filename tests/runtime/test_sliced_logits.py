"""Contexts that make some of their graph's logits."""

import numpy as np
import pytest
import toy

from mtpcore import Batch, BatchError, Context, GraphError, GraphType


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    tensors = toy.trunk_tensors() | toy.head_tensors()
    return toy.load(tmp_path_factory.mktemp("toy"), tensors, heads=1)


@pytest.mark.parametrize("rows", [[0], [5, 6, 63], np.arange(0, 64, 3), range(64)])
def test_each_has_the_bits_of_the_whole(model, rows):
    whole, some = (
        Context(model, 8, threads=1, logit_rows=few).process(Batch.of([3, 4])).logits
        for few in (None, rows)
    )
    assert np.array_equal(some, whole[:, list(rows)])


@pytest.mark.parametrize(
    "rows", [[], [-1], [64], [3, 3], [4, 3], [[1, 2]], 7, [2**31 - 1, -(2**31)], [-1, 5]]
)
def test_what_is_no_part_is_refused(model, rows):
    with pytest.raises(GraphError, match=r"logit_rows: .* wanted ascending numbers in 0..63"):
        Context(model, 8, threads=1, logit_rows=np.array(rows, np.int32))


@pytest.mark.parametrize("rows", ["logits", [0.5], [2**40]])
def test_what_is_no_number_is_refused(model, rows):
    with pytest.raises(BatchError, match="logit_rows"):
        Context(model, 8, threads=1, logit_rows=rows)


def test_a_graph_without_logits_has_no_part_of_them(tmp_path):
    def build(g, inputs, h):
        return toy.Outputs(hidden=toy.head(g, inputs, h).rows["hidden"])

    tensors = toy.trunk_tensors() | toy.head_tensors()
    model = toy.load(tmp_path, tensors, toy.replaced(name="mute", build=build), heads=1)
    with pytest.raises(GraphError, match="wanted a graph with logits"):
        Context(model, 8, graph_type=GraphType.DRAFT, drafter="mute", threads=1, logit_rows=[1])
