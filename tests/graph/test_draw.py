"""Pictures of programs: every node and edge is there, and names from outside stay text."""

import re

import numpy as np

from mtpcore.graph import GraphBuilder, Outputs, to_dot, to_mermaid

TENSORS = {
    "embd.weight": np.zeros((9, 4)),
    'odd "<b>\\name.weight': np.zeros((4, 4)),
    "gate.weight": np.zeros((3, 4)),
}


def program():
    g = GraphBuilder('dr"aft', TENSORS)
    x = g.embed(g.inputs.tokens, "embd.weight")
    q = g.split_heads(g.matmul(x, 'odd "<b>\\name.weight'), 2)
    y = g.merge_heads(g.attention(q, q, q, layer=0, scale=1))
    _, shares = g.route(y, "gate.weight", n_used=2)
    return g.finish(Outputs(logits=g.output_rows(y), shares=shares))


def test_mermaid():
    text = to_mermaid(program())
    lines = text.splitlines()
    assert lines[0] == "flowchart TB"
    edges = [line for line in lines if "-->" in line]
    boxes = [line for line in lines[2:] if "-->" not in line]
    assert len(boxes) == 2 + 7 + 2
    assert len(edges) == sum(len(node.inputs) for node in program().nodes) + 2
    drawn = {re.match(r"  (\w+)", line)[1] for line in boxes}
    assert all({line.split()[0], line.split()[-1]} <= drawn for line in edges)
    assert '  v0(["tokens"])' in lines
    assert "odd &quot;&lt;b&gt;\\name.weight 4 x 4" in text
    assert any("[(" in line and "layer 0, mask causal, window 0" in line for line in boxes)
    assert '|"n_tokens x 2 x 2"|' in text


def test_dot():
    text = to_dot(program())
    assert text.startswith('digraph "dr\\"aft" {\n')
    assert text.endswith("}\n")
    assert 'label="matmul\\nodd \\"<b>\\\\name.weight 4 x 4"' in text
    assert text.count("->") == sum(len(node.inputs) for node in program().nodes) + 2
    assert "shape=cylinder" in text


def test_a_tied_weight_says_what_it_stands_for():
    from mtpcore.declarations.spec import first_of

    g = GraphBuilder("tied", TENSORS, ties=[first_of("own.weight", "embd.weight")])
    program = g.finish(Outputs(y=g.embed(g.inputs.tokens, "own.weight")))
    assert "embd.weight (for own.weight) 9 x 4" in to_mermaid(program)
