"""A declaration that the draft loop cannot follow is refused when contexts are linked."""

import msgspec
import pytest
from harness.hashed import SPEC, HashBackend, HashModel

from mtpcore import CapacityError, Context, LinkError, link
from mtpcore.declarations.spec import Block, Heads, KVPolicy, Tree
from mtpcore.memory import SPARE


def link_with(**changes):
    model = HashModel(msgspec.structs.replace(SPEC, **changes))
    return link(Context(model, 64, backend=HashBackend()))


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": "block"},
        {"shape": "tree"},
        {"kv": KVPolicy(source="shared")},
        {"kv": KVPolicy(source="none")},  # of a graph with attention
        {"kv": KVPolicy(refresh=False)},
        {"kv": KVPolicy(warm_up=False)},
        {"kv": KVPolicy(window=32)},
        {"kv": KVPolicy(per_head=True)},
        {"heads": Heads(order="each-step")},
        {"heads": Heads(rereads=True)},
        {"heads": Heads(hidden_from="target")},
        {"block": Block(size=4, mask_token=1)},
        {"tree": Tree(depth=2, width=2, n_nodes=4)},
        {"positions": "same"},
        {"first_embedding": "zeros"},
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_what_the_loop_cannot_follow_is_refused(changes):
    with pytest.raises(LinkError, match="cannot do what the declaration asks") as caught:
        link_with(**changes)
    error = caught.value
    for spelled in (error.wanted, error.got):
        fields = {one.partition("=")[0].partition(".")[0] for one in spelled.split(", ")}
        assert fields == set(changes)
    assert error.wanted != error.got
    assert "{" not in str(error)
    assert error.fix


def test_heads_of_their_own_steps_draft_no_trees():
    heads = Heads(count=2, order="each-step", rereads=True)
    tree = Tree(depth=2, width=2, n_nodes=4)
    with pytest.raises(LinkError, match="chains, no trees") as caught:
        link_with(heads=heads, kv=KVPolicy(per_head=True), shape="tree", tree=tree)
    assert "--draft-tree" in caught.value.fix


def test_the_defaults_are_what_it_can_follow():
    assert repr(link_with()) == "Cross(llm, draft)"
    assert repr(link_with(heads=Heads(count=2))) == "Cross(llm, draft)"  # the first is repeated
    tree = {"shape": "tree", "tree": Tree(depth=2, width=2, n_nodes=4)}
    assert repr(link_with(**tree)) == "Cross(llm, draft)"
    for changes in ({"heads": Heads(order="each-step")}, {"positions": "same"}):
        with pytest.raises(LinkError, match="cannot do what the declaration asks"):
            link_with(**tree, **changes)


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
