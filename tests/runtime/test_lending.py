"""A drafter's file and its target's: tables that are borrowed, and files that do not fit."""

import msgspec
import mtpcore_eagle3
import pytest
import toy
from harness import eagle3

import mtpcore.models
from mtpcore import Batch, Context, Cross, LinkError, link, load_model
from mtpcore.discovery.registry import Registry
from mtpcore.gguf import open_model_file, write_model_file


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
        contexts[one].prepare()
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
    link(Context(target, 64), draft_model=head).prepare()
    n = len(target.packed)
    assert head.packed
    head.close()
    assert not head.packed
    assert len(target.packed) == n


def rewrite(source, path, **changed):
    with open_model_file(source) as file:
        write_model_file(
            path,
            file.architecture,
            file.metadata | changed,
            {name: t.raw() for name, t in file.tensors.items()},
            {name: t.type for name, t in file.tensors.items()},
        )
    return path


def test_a_link_that_fails_binds_nobody(pair, tmp_path):
    """The head can be linked with the right target afterwards."""
    target, head = pair
    path = rewrite(target.path, tmp_path / "shallow.gguf", **{"llama.block_count": 2})
    shallow = load_model(path)
    llm = Context(shallow, 64)
    with pytest.raises(mtpcore.GraphError, match="layer_input:3"):
        link(llm, draft_model=head)
    assert llm.owner is None
    assert head.target is None
    assert not [name for name in head.tensors if name.startswith("target:")]
    cross = link(Context(target, 64), draft_model=head)
    with pytest.raises(LinkError, match="borrows from another target"):
        link(llm, draft_model=head)
    assert head.target is target
    cross.llm.process(Batch.of([1, 2, 3]))
    assert len(cross.draft(0, 2)) == 2


def test_a_head_made_for_other_architectures(pair):
    fit = msgspec.structs.replace(mtpcore_eagle3.EAGLE3.fit, targets=frozenset({"qwen3"}))
    spec = msgspec.structs.replace(mtpcore_eagle3.EAGLE3, fit=fit)
    head = load_model(pair[1].path, plugins=Registry.of(mtpcore.models, toy.offering(spec)))
    with pytest.raises(LinkError, match="made for other targets") as caught:
        link(Context(pair[0], 64), draft_model=head)
    assert (caught.value.wanted, caught.value.got) == ("qwen3", "llama")


def test_tokens_that_are_spelled_otherwise_are_warned_about(pair, tmp_path, caplog):
    target, head = pair
    texts = list(head.metadata["tokenizer.ggml.tokens"])
    for name, changes, said in (("same", {}, ""), ("other", {7: "x", 9: "y"}, "2 of 40 tokens")):
        mine = [changes.get(i, text) for i, text in enumerate(texts)]
        kinds = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": mine}
        other = load_model(rewrite(target.path, tmp_path / f"{name}.gguf", **kinds))
        caplog.clear()
        link(Context(other, 64), draft_model=load_model(head.path))
        assert said in caplog.text
        assert bool(said) == bool(caplog.text)
    assert "the first at id 7" in caplog.text
