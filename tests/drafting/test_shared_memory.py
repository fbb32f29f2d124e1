"""Drafters that read the target's memory: what is refused; for texts see test_gemma4_assistant."""

import mtpcore_glm_nextn
import pytest
import toy

import mtpcore
from mtpcore.declarations.checks import check_spec
from mtpcore.discovery.registry import Registry
from mtpcore.errors import GraphError, LinkError, PluginError
from mtpcore.plugin import (
    DrafterSpec,
    Feed,
    Fit,
    Heads,
    Outputs,
    SharedMemory,
    TreeShape,
    attention_block,
)

JOIN = "blk.{n}.nextn.eh_proj.weight"


def reader(g, inputs, h, layer=0, stores=False):
    """Attend to what the target stored, with the matrices of the demo's head."""
    token = g.embed(inputs.tokens, "token_embd.weight")
    x = g.matmul(g.concat(token, inputs["hidden"]), JOIN)
    q = g.split_heads(g.matmul(x, "blk.{n}.attn_q.weight"), h.n_heads)
    y = g.attend(q, layer=layer, scale=1.0)
    x = g.add(x, g.matmul(g.merge_heads(y), "blk.{n}.attn_output.weight"))
    if stores:
        x = g.add(x, attention_block(g, x, inputs.positions, g.n, h))
    return Outputs(logits=g.matmul(g.output_rows(x), "token_embd.weight"), hidden=x)


def spec(build=reader, layers=lambda stored, h: [stored[-1].layer], **changes):
    """Return a declaration."""
    fields = {
        "name": "reader",
        "fit": Fit(architectures=frozenset({"glm4moe"}), tensors=(JOIN,)),
        "feeds": (Feed(slot="hidden", taps=("hidden",), recycle="hidden"),),
        "shared_memory": SharedMemory(layers=layers),
    }
    return DrafterSpec(build=build, **(fields | changes))


def program(declared):
    """Build the drafter's graph for the demo."""
    plugins = Registry.of(mtpcore_glm_nextn, toy.offering(declared))
    with mtpcore.load_model("demo", plugins=plugins) as model:
        return model.program("draft", drafter="reader")


def test_a_map_names_layers_of_the_target():
    with mtpcore.load_model("demo") as model:
        stored = [layer.layer for layer in model.program().memory]
    for number in stored:
        made = program(spec(layers=lambda _, h, number=number: [number]))
        assert [layer.layer for layer in made.shared] == [number]
        assert not made.memory
    with pytest.raises(PluginError, match="stores no such layer") as caught:
        program(spec(layers=lambda _, h: [stored[0], 99]))
    assert "99" in str(caught.value)
    assert "reader" in str(caught.value)


def test_a_layer_beyond_the_map_is_refused():
    with pytest.raises(GraphError, match="no attention before this one"):
        program(spec(lambda g, inputs, h: reader(g, inputs, h, layer=1)))


def test_a_graph_reads_a_memory_or_has_one():
    with pytest.raises(GraphError, match="has none of its own"):
        program(spec(lambda g, inputs, h: reader(g, inputs, h, stores=True)))


def test_a_graph_that_only_stores_is_refused_where_it_is_linked():
    """It would be given pages of the target for layers of its own."""

    def build(g, inputs, h):
        x = g.matmul(g.concat(g.embed(inputs.tokens, "token_embd.weight"), inputs["hidden"]), JOIN)
        x = g.add(x, attention_block(g, x, inputs.positions, g.n, h))
        return Outputs(logits=g.matmul(g.output_rows(x), "token_embd.weight"), hidden=x)

    plugins = Registry.of(mtpcore_glm_nextn, toy.offering(spec(build)))
    with mtpcore.load_model("demo", plugins=plugins) as model:
        llm = mtpcore.Context(model, 64)
        with pytest.raises(LinkError, match="stores nothing of its own"):
            mtpcore.link(llm, "reader")


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": "tree", "tree": TreeShape(depth=2, width=2, n_nodes=4)},
        {"heads": Heads(order="each-step", count=2)},
        {"graphs": (("further", reader),)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_only_one_graph_that_drafts_a_chain_may_share(changes):
    with pytest.raises(PluginError, match="shared_memory"):
        check_spec(spec(**changes))
