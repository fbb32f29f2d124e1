"""Tables that a drafter's file borrows from its target's are packed once."""

import pytest
from harness import eagle3

from mtpcore import Batch, Context, Cross, link, load_model


@pytest.fixture
def pair(tmp_path):
    variant = eagle3.VARIANTS["the target's head"]
    return load_model(eagle3.write_target(tmp_path)), load_model(
        eagle3.write_head(tmp_path, variant)
    )


def tensors(packed):
    return [part for key in packed for part in key if isinstance(part, str) and "." in part]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("first", ["target", "head"])
def test_borrowed_tables_are_packed_once(pair, backend, first):
    """Whichever of the two contexts is made first."""
    target, head = pair
    head.borrow_from(target)
    options = {"backend": backend, "threads": 1, "kv_dtype": "f32"}
    contexts = {}
    for one in ("target", "head") if first == "target" else ("head", "target"):
        graph = {"graph_type": "draft", "drafter": "eagle3"} if one == "head" else {}
        contexts[one] = Context(target if one == "target" else head, 64, **graph, **options)
    borrowed = {"token_embd.weight", "output.weight"}
    assert not [name for name in tensors(head.packed) if name.removeprefix("target:") in borrowed]
    names = tensors(target.packed)
    assert borrowed <= set(names)
    assert len(names) == len(set(names))
    fusion = Context(head, 64, graph_type="fusion", drafter="eagle3", **options)
    cross = Cross(llm=contexts["target"], draft=contexts["head"], draft_fusion=fusion)
    cross.llm.process(Batch.of([1, 2, 3]))
    linked = link(Context(target, 64, **options), draft_model=head)
    linked.llm.process(Batch.of([1, 2, 3]))
    assert cross.draft(0, 3) == linked.draft(0, 3)
    assert len(tensors(target.packed)) == len(names)


def test_what_is_its_own_is_given_up_alone(pair):
    target, head = pair
    link(Context(target, 64), draft_model=head)
    n = len(target.packed)
    assert head.packed
    head.close()
    assert not head.packed
    assert len(target.packed) == n
