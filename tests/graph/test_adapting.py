"""Programs in which adapters change products."""

import pytest

from mtpcore.graph import (
    JOINT,
    GraphBuilder,
    Outputs,
    adapt_products,
    adapted_products,
    adapted_tables,
    adapted_vectors,
)


class Shape:
    def __init__(self, *shape):
        self.shape = shape


TENSORS = {"table": Shape(10, 8), "w": Shape(6, 8), "out": Shape(10, 6), "up": Shape(4, 6, 8)}


def program():
    g = GraphBuilder("toy", {**TENSORS, "router": Shape(4, 8)})
    x = g.embed(g.inputs.tokens, "table")
    ids, shares = g.route(x, "router", n_used=2)
    y = g.add(g.matmul(x, "w"), g.mix(g.expert_matmul(x, ids, "up"), shares))
    return g.finish(Outputs(logits=g.matmul(g.output_rows(y), "out"), y=y))


def test_what_can_be_adapted_are_products_by_matrices_and_experts():
    assert adapted_products(program()) == {"w": (6, 8), "up": (4, 6, 8), "out": (10, 6)}


def test_a_table_is_changed_where_tokens_are_looked_up():
    g = GraphBuilder("tied", TENSORS)
    x = g.embed(g.inputs.tokens, "table", scale=3.0)
    before = g.finish(Outputs(logits=g.matmul(g.output_rows(x), "table")))
    assert adapted_products(before) == {}  # the same name means the table
    assert adapted_tables(before) == {"table": (10, 8)}
    after = adapt_products(before, {"table": 3}, 4, 2, (".a", ".b"))
    assert after.weights()["table.a"].shape == (41, 3)
    assert after.weights()["table.b"].shape == (5, 8, 3)
    made_by = {value: node for node in after.nodes for value in node.outputs}
    product = made_by[after.outputs["logits"]]
    assert product.op == "matmul"
    assert [node.op for node in after.nodes].count("scale") == 1  # what is added is scaled, too
    assert made_by[product.inputs[0]].inputs[0] in made_by
    assert made_by[made_by[product.inputs[0]].inputs[0]].op == "add_chosen"


def test_biases_are_changed_after_their_products():
    g = GraphBuilder("biased", {**TENSORS, "b": Shape(6), "s": Shape(8)})
    x = g.shift_by(g.embed(g.inputs.tokens, "table"), "s")
    before = g.finish(Outputs(logits=g.matmul(g.output_rows(g.matmul(x, "w", "b")), "out")))
    assert adapted_vectors(before) == {"b": (1, 6), "s": (1, 8)}
    after = adapt_products(before, {"w": 3, "b": 1, "s": 1}, 4, 2, (".a", ".b"))
    assert (after.weights()["b.a"].shape, after.weights()["s.a"].shape) == ((5, 6), (5, 8))
    assert not {"b.b", "s.b"} & after.weights().keys()
    chosen = [node.name for node in after.nodes if node.op == "add_chosen"]
    assert chosen == ["s.adapted_bias", "w.adapted", "w.adapted_bias"]
    product = next(node for node in after.nodes if node.name == "w")
    assert after.nodes[[*after.nodes].index(product) - 1].name == "s.adapted_bias"


@pytest.mark.parametrize("n_used", [1, 2])
def test_norms_are_changed_by_what_they_are_without_a_weight(n_used):
    tensors = {**TENSORS, "n": Shape(8), "h": Shape(3), "l": Shape(6), "lb": Shape(6)}
    g = GraphBuilder("normed", tensors)
    x = g.rms_norm(g.embed(g.inputs.tokens, "table"), "n", eps=1e-5)
    heads = g.rms_norm(g.split_heads(g.matmul(x, "w"), 2), "h", eps=1e-6)
    y = g.layer_norm(g.merge_heads(heads), "l", "lb", eps=1e-5)
    before = g.finish(Outputs(logits=g.matmul(g.output_rows(y), "out")))
    assert adapted_vectors(before) == {"n": (1, 8), "h": (1, 3), "l": (1, 6), "lb": (1, 6)}
    ranks = dict.fromkeys(("n", "h", "l", "lb"), 1)
    after = adapt_products(before, ranks, 4, n_used, (".a", ".b"))
    weights = after.weights()
    assert weights[f"h{JOINT}h.a"].shape == (5, 6)  # once for each head
    assert (weights["n.a"].shape, weights["l.a"].shape) == ((5, 8), (5, 6))
    norms = [node for node in after.nodes if node.op.endswith("_norm")]
    bare = [node for node in norms if not node.weights]
    assert [node.attrs["eps"] for node in bare] == [1e-5, 1e-6, 1e-5]
    repeated = [node.attrs["n_heads"] for node in after.nodes if node.op == "repeat"]
    assert repeated == [n_used] * (3 if n_used > 1 else 0)
    chosen = [node.name for node in after.nodes if node.op == "add_chosen"]
    assert [name.rpartition(".")[2] for name in chosen] == [*["adapted"] * 3, "adapted_bias"]
    assert after.shape("logits") == before.shape("logits")


def test_later_nodes_read_the_sum():
    before = program()
    after = adapt_products(before, {"w": 3, "out": 2}, 4, 2, (".a", ".b"))
    assert {name: after.shape(name) for name in after.outputs} == {
        name: before.shape(name) for name in before.outputs
    }
    made_by = {value: node for node in after.nodes for value in node.outputs}
    assert made_by[after.outputs["logits"]].name == "out.adapted"
    (add,) = (node for node in after.nodes if node.name == made_by[after.outputs["y"]].name)
    assert made_by[add.inputs[0]].name == "w.adapted"
    assert after.weights()["w.a"].shape == (5, 3, 8)
    assert after.weights()["out.b"].shape == (5, 10, 2)
    assert after.values[after.inputs["adapters"]].shape == ("n_tokens", 2)
    assert before == program()  # which nothing changed


@pytest.mark.parametrize("names", [["w"], ["out"], ["w", "out"]])
def test_ids_are_taken_once_for_all_rows_that_read_them(names):
    after = adapt_products(program(), dict.fromkeys(names, 3), 1, 1, (".a", ".b"))
    rows = [node.attrs["rows"] for node in after.nodes if node.op == "given_ids"]
    assert sorted(rows) == sorted({"w": "n_tokens", "out": "n_outputs"}[name] for name in names)


@pytest.mark.parametrize("n_used", [1, 3])
def test_experts_are_paired_with_adapters(n_used):
    after = adapt_products(program(), {"up": 3}, 5, n_used, (".a", ".b"))
    assert after.weights()["up.a"].shape == (21, 3, 8)
    assert after.weights()["up.b"].shape == (21, 6, 3)
    pairs = [node for node in after.nodes if node.op == "pair_ids"]
    assert [node.attrs["column"] for node in pairs] == [*range(n_used)]
    made_by = {value: node for node in after.nodes for value in node.outputs}
    mixed = next(node for node in after.nodes if node.name == "mix_4")
    assert made_by[mixed.inputs[0]].name == "up.adapted"


def test_matrices_that_read_the_same_rows_share_a_product():
    g = GraphBuilder("toy", {**TENSORS, "v": Shape(5, 8)})
    x = g.embed(g.inputs.tokens, "table")
    before = g.finish(Outputs(w=g.matmul(x, "w"), v=g.matmul(x, "v")))
    after = adapt_products(before, {"w": 3, "v": 2}, 4, 2, (".a", ".b"))
    weights = after.weights()
    assert weights[f"w{JOINT}v.a"].shape == (5, 5, 8)
    assert (weights["w.b"].shape, weights["v.b"].shape) == ((5, 6, 3), (5, 5, 2))
    parts = [node.attrs for node in after.nodes if node.op == "slice"]
    assert parts == [{"start": 0, "stop": 3}, {"start": 3, "stop": 5}]
    alone = adapt_products(before, {"v": 2}, 4, 2, (".a", ".b"))
    assert alone.weights()["v.a"].shape == (5, 2, 8)
