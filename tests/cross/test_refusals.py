"""A declaration that the draft loop cannot follow is refused when contexts are linked."""

import msgspec
import pytest
import toy
from harness.hashed import SPEC, HashBackend, HashModel

from mtpcore import Batch, CapacityError, Context, LinkError, link, load_model
from mtpcore.declarations.spec import Heads, TreeShape
from mtpcore.memory import SPARE
from mtpcore.plugin import Feed, Outputs


def link_with(**changes):
    model = HashModel(msgspec.structs.replace(SPEC, **changes))
    return link(Context(model, 64, backend=HashBackend()))


@pytest.mark.parametrize("changes", [{"shape": "tree"}, {"tree": TreeShape(paths=((0,),))}])
def test_a_tree_without_the_shape_and_a_shape_without_the_tree_are_refused(changes):
    model = load_model("demo")
    spec = msgspec.structs.replace(model.find_drafter(), **changes)
    with pytest.raises(LinkError, match="goes with the shape 'tree'"):
        link(Context(model, 64), spec)


def test_what_each_loop_can_follow_is_linked():
    assert repr(link_with()) == "Cross(llm, draft)"
    assert repr(link_with(heads=Heads(count=2))) == "Cross(llm, draft)"  # the first is repeated
    tree = {"shape": "tree", "tree": TreeShape(depth=2, width=2, n_nodes=4)}
    assert repr(link_with(**tree)) == "Cross(llm, draft)"
    chained = repr(link_with(heads=Heads(count=2, order="each-step")))
    assert chained == "Cross(llm, draft, draft_head1)"


def whole(mask):
    """Return a graph whose rows see each other as ``mask`` says, or as a mean of four makes it."""

    def build(g, inputs, h):
        heads = g.split_heads(inputs["hidden"], 2)
        seen = g.attention(heads, heads, heads, layer=0, scale=1.0, mask=mask or "causal")
        x = g.merge_heads(seen) if mask else g.block_mean(inputs["hidden"], 4)
        logits = g.matmul(g.output_rows(x), "blk.{n}.head.weight")
        return Outputs(logits=logits, hidden=x)

    return build


EACH_STEP = {
    "heads": Heads(order="each-step", hidden_from="target"),
    "feeds": (Feed(slot="hidden"),),
}


@pytest.mark.parametrize("mask", ["block", None])
@pytest.mark.parametrize(
    "changes",
    [{}, {"shape": "tree", "tree": TreeShape(depth=2, width=2, n_nodes=4)}, EACH_STEP],
    ids=["chain", "tree", "heads"],
)
def test_rows_that_see_later_ones_are_refused(mask, changes, tmp_path):
    """What a token's row is would depend on how many came with it."""
    heads = toy.head_tensors() | toy.head_tensors(n=toy.N_LAYERS + 1)
    tensors = toy.trunk_tensors() | heads
    spec = toy.replaced(name="together", build=whole(mask), **changes)
    llm = Context(toy.load(tmp_path, tensors, spec, heads=2), 64)
    with pytest.raises(LinkError, match="rows depend on which others come with them") as caught:
        link(llm, "together")
    assert "'together'" in caught.value.where
    assert llm.owner is None


class Windowed(HashModel):
    """One of its graphs has a sliding window, so that its memory takes back few rows."""

    def __init__(self, graph, limit):
        super().__init__(msgspec.structs.replace(SPEC, limit=limit))
        self.graph = graph

    def program(self, graph_type, **options):
        program = super().program(graph_type, **options)
        if graph_type.name != self.graph:
            return program
        layers = tuple(msgspec.structs.replace(one, window=6) for one in program.memory)
        return msgspec.structs.replace(program, memory=layers)


@pytest.mark.parametrize("graph", ["llm", "draft"])
def test_a_memory_that_cannot_take_back_the_longest_draft_is_refused(graph):
    """When it is linked, not in the round in which it would be too late."""
    llm = Context(Windowed(graph, SPARE), 400, backend=HashBackend())
    with pytest.raises(CapacityError, match="sliding window") as caught:
        link(llm)
    assert (caught.value.wanted, caught.value.got) == (f"at most {SPARE}", SPARE + 1)
    assert caught.value.fix
    assert llm.owner is None
    assert link(Context(Windowed(graph, SPARE - 1), 400, backend=HashBackend())).drafters


class Five(int):
    """A whole number that cannot be compared, and so not be a key."""

    def __eq__(self, other):
        raise RuntimeError("compared")


ACTS = {
    "accept": lambda cross, seq: cross.accept(seq),
    "remove": lambda cross, seq: cross.remove(seq),
    "digest": lambda cross, seq: cross.digest(seq),
    "fork": lambda cross, seq: cross.fork(seq, Five(1)),
    "rollback": lambda cross, seq: cross.rollback(seq, 2),
    "pending": lambda cross, seq: cross.pending(seq),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_sequence_is_read_once(act):
    """What subclasses of int do is no matter: acts use the number that was read."""
    context = Context(load_model("demo"), 64, n_seq_max=2)
    cross = link(context)
    cross.llm.process(Batch.of([1, 2, 3]))
    cross.verify({0: cross.draft(0, 2)})
    if act != "accept":
        cross.accept(0)
    ACTS[act](cross, Five(0))
