"""Blocks: what a declaration, a file and contexts must be for the loop to run them."""

import msgspec
import numpy as np
import pytest
import toy
from harness import dflash
from harness.block_runs import by_the_host
from harness.dflash import VARIANTS

import mtpcore
from mtpcore import Batch, Context, Cross, Sampling, link, load_model
from mtpcore._ext._draft import run as run_compiled
from mtpcore.backends.cpu import backend
from mtpcore.discovery.registry import Registry
from mtpcore.drafting.draft_vocabulary import DraftVocabulary
from mtpcore.errors import GraphError, LinkError
from mtpcore.plugin import Block, Feed, Key, Outputs

N_LAYERS, WIDTH, N_VOCAB = toy.N_LAYERS, toy.WIDTH, toy.N_VOCAB


def rows(g, inputs, h, mask="causal"):
    """A layer that attends, of a token and its row."""
    token = g.embed(inputs.tokens, "blk.{n}.embed.weight")
    x = g.matmul(g.concat(token, inputs["hidden"]), "blk.{n}.join.weight")
    heads = g.split_heads(x, 2)
    seen = g.attention(heads, heads, heads, layer=0, scale=1.0, mask=mask)
    x = g.rms_norm(g.add(x, g.merge_heads(seen)), "blk.{n}.norm.weight", toy.EPS)
    return Outputs(logits=g.matmul(g.output_rows(x), "blk.{n}.head.weight"))


MASKED = Feed(slot="hidden", mask="blk.{n}.mask.weight")
SPEC = toy.replaced(
    name="toy_block",
    build=rows,
    shape="block",
    block=Block(size=4, mask=N_VOCAB - 1),
    feeds=(MASKED,),
    unread=(("blk.{n}.mask.weight", "declarations of this test may read another one"),),
)


def load(folder, spec=SPEC, **keys):
    mask = np.linspace(-1, 1, WIDTH, dtype=np.float32)
    tensors = toy.trunk_tensors() | toy.head_tensors(mask=mask)
    path = toy.write(folder / "toy.gguf", tensors, heads=1, **keys)
    return load_model(path, plugins=Registry.of(*toy_plugins(spec)))


def toy_plugins(spec):
    """Return the toy's trunk and one drafter."""
    import types

    trunk = types.ModuleType("toy_trunk")
    trunk.mtpcore_models = toy.mtpcore_models
    return trunk, toy.offering(spec)


def linked(model, **options):
    llm = Context(model, 32, kv_dtype="f32", threads=1, **options)
    cross = link(llm)
    llm.process(Batch.of([5, 6, 7]))
    return cross


def changed(**block):
    return msgspec.structs.replace(SPEC, block=msgspec.structs.replace(SPEC.block, **block))


def test_a_block_drafts_up_to_its_size(tmp_path):
    cross = linked(load(tmp_path))
    assert [len(cross.draft(0, k)) for k in (1, 3, 4, 8)] == [1, 3, 4, 4]


def test_rows_that_draft_in_place_are_one_less(tmp_path):
    cross = linked(load(tmp_path, changed(from_pending=False)))
    assert len(cross.draft(0, 8)) == 3
    assert load(tmp_path, changed(from_pending=False, size=2)).drafters[0].limit == 1


def test_sizes_come_from_the_file(tmp_path, caplog):
    spec = changed(
        size=Key("{arch}.rows", 3), mask="{arch}.mask", from_pending=Key("{arch}.first", True)
    )
    keys = {"toy.rows": 5, "toy.mask": 9, "toy.first": False}
    assert load(tmp_path, spec, **keys).drafters[0].block == Block(
        size=5, mask=9, from_pending=False
    )
    assert load(tmp_path, spec, **{"toy.mask": 9}).drafters[0].limit == 3
    in_place = {"toy.mask": 9, "toy.rows": 1, "toy.first": False}
    for wrong in ({}, {"toy.mask": -1}, {"toy.mask": 9, "toy.rows": 0}, in_place):
        assert not load(tmp_path, spec, **wrong).drafters
    assert all(f"metadata key 'toy.{key}'" in caplog.text for key in ("mask", "rows"))


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        (changed(mask=N_VOCAB), "no row for the mask token"),
        (
            msgspec.structs.replace(SPEC, build=lambda *a: rows(*a, mask="block")),
            "make no entries of a text",
        ),
        (
            msgspec.structs.replace(SPEC, feeds=(Feed(slot="hidden", mask="blk.{n}.gone"),)),
            "no row that feeds a slot",
        ),
        (
            msgspec.structs.replace(SPEC, feeds=(Feed(slot="hidden", mask="blk.{n}.join.weight"),)),
            "no row that feeds a slot",
        ),
    ],
)
def test_what_cannot_run_is_refused_when_linked(spec, what, tmp_path):
    llm = Context(load(tmp_path, spec), 32)
    with pytest.raises(LinkError, match=what):
        link(llm)
    assert llm.owner is None


def test_the_row_of_masks_is_finite(tmp_path):
    tensors = toy.trunk_tensors() | toy.head_tensors(mask=np.full(WIDTH, np.nan, np.float32))
    path = toy.write(tmp_path / "toy.gguf", tensors, heads=1)
    with pytest.raises(LinkError, match="finite"):
        link(Context(load_model(path, plugins=Registry.of(*toy_plugins(SPEC))), 32))


def test_drafts_change_nothing_that_is_kept(tmp_path):
    """Entries of masks are gone, and a second draft is the first one."""
    cross, plain = linked(load(tmp_path)), linked(load(tmp_path))
    drafts = cross.draft(0, 4, Sampling(seed=3))
    assert cross.draft(0, 4, Sampling(seed=3)) == drafts
    assert cross.digest(0) == plain.digest(0)
    assert cross.contexts["draft"].length(0) == 3


# Graphs that share a memory


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Return a target and DFlash's and DSpark's drafters."""
    folder = tmp_path_factory.mktemp("pair")
    made = [load_model(dflash.write_target(folder))]
    for name in ("z-lab", "dspark"):
        path = dflash.write_drafter(folder / name, VARIANTS[name])
        made.append(load_model(path))
        made[-1].borrow_from(made[0])
    return made


def contexts(target, drafter, **options):
    """Return the contexts that ``link`` would make."""
    draft = Context(drafter, 64, graph_type="draft")
    entries = Context(drafter, 64, graph_type="entries", drafter="dflash", host=draft, **options)
    return {"llm": Context(target, 64), "draft": draft, "draft_entries": entries}


def test_contexts_made_by_hand_draft_as_linked_ones(pair):
    target, drafter, _ = pair
    made = Cross(**contexts(target, drafter)), link(Context(target, 64), draft_model=drafter)
    for cross in made:
        cross.llm.process(Batch.of([3, 5, 8, 1, 9]))
    drafts = [cross.draft(0, 4) for cross in made]
    assert drafts[0] == drafts[1] != []
    assert made[0].digest(0) == made[1].digest(0)
    digests = made[0].digest(0)
    assert digests["draft"] == digests["draft_entries"] != digests["llm"]


def test_the_graph_of_entries_shares_the_memory(pair):
    target, drafter, _ = pair
    apart = contexts(target, drafter)
    apart["draft_entries"] = Context(drafter, 64, graph_type="entries", drafter="dflash")
    with pytest.raises(LinkError, match="host=draft"):
        Cross(**apart)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"n_seq_max": 2}, "sizes differ"),
        ({"kv_dtype": "f32"}, "sizes differ"),
        ({"backend": "reference"}, "backend differ"),
    ],
)
def test_a_shared_memory_is_of_one_size(options, what, pair):
    with pytest.raises(GraphError, match=what):
        contexts(*pair[:2], **options)


def test_a_host_is_a_context_of_the_same_layers(pair):
    target, drafter, _ = pair
    with pytest.raises(LinkError, match="a memory is shared with a Context"):
        Context(drafter, 64, graph_type="entries", drafter="dflash", host="draft")
    with pytest.raises(GraphError, match="layers differ"):
        Context(drafter, 64, graph_type="entries", drafter="dflash", host=Context(target, 64))


def test_a_saved_state_has_shared_rows_once(pair):
    """And goes on as the one that was saved."""
    target, drafter, _ = pair
    cross = link(Context(target, 64, n_seq_max=2), draft_model=drafter)
    cross.llm.process(Batch.of([3, 5, 8, 1, 9]))
    drafts = cross.draft(0, 4)
    saved = cross.save(0)
    assert saved.count(b"draft: memory") == 1
    assert b"draft_entries: memory" not in saved
    cross.load(1, saved)
    assert cross.draft(1, 4) == drafts
    assert cross.digest(0) == cross.digest(1)
    cross.remove(0)
    cross.fork(1, 0)
    assert cross.digest(0) == cross.digest(1)


def test_bytes_of_shared_rows_are_counted_once(pair):
    target, drafter, _ = pair
    cross = link(Context(target, 64), draft_model=drafter)
    cross.llm.process(Batch.of([3, 5, 8]))
    cross.draft(0, 4)
    alone = cross.contexts["draft"].runner.memory.bytes_of({0})
    target_bytes = cross.llm.runner.memory.bytes_of({0})
    assert cross.speculation.bytes_of({0}) == target_bytes + alone > target_bytes


def test_a_block_wants_its_rows_in_one_batch(pair):
    target, drafter, _ = pair
    cross = link(Context(target, 64, n_batch=2), draft_model=drafter)
    assert cross.contexts["draft"].n_batch == VARIANTS["z-lab"].size
    made = {
        "llm": Context(target, 64),
        "draft": (draft := Context(drafter, 64, graph_type="draft", n_batch=4)),
        "draft_entries": Context(
            drafter, 64, graph_type="entries", drafter="dflash", n_batch=4, host=draft
        ),
    }
    with pytest.raises(LinkError, match="a block runs in one piece"):
        Cross(**made)


def test_a_post_head_drafts_all_tokens_or_none(pair):
    """A list of tokens worth drafting is refused; the declared vocabulary is not."""
    target, _, drafter = pair
    few = DraftVocabulary(np.arange(10), tokenizer="")
    with pytest.raises(LinkError, match="post-head"):
        link(Context(target, 64), draft_model=drafter, draft_vocabulary=few)


@pytest.mark.parametrize("which", ["z-lab", "dspark", "xpress"])
def test_a_round_drafts_in_one_call_of_compiled_code(pair, which, tmp_path, monkeypatch):
    """Behind the one that makes entries; whatever chooses, and however often."""
    calls = []
    drafter = load_model(dflash.write_drafter(tmp_path, VARIANTS[which], seed=2))
    cross = link(Context(pair[0], 64), draft_model=drafter)
    cross.llm.process(Batch.of([3, 5, 8, 1, 9]))
    run = backend.CpuPlan.run
    monkeypatch.setattr(
        backend, "run", lambda *given: calls.append("schedule") or run_compiled(*given)
    )
    monkeypatch.setattr(
        backend.CpuPlan, "run", lambda *given: calls.append(given[0].program.name) or run(*given)
    )
    for sampling in (Sampling.greedy(), Sampling(top_k=5, repetition_penalty=1.2, seed=3)):
        calls.clear()
        assert len(cross.draft(0, 3, sampling)) == 3
        assert calls[-1] == "schedule"
        assert calls[:-1] in ([], [cross.contexts["draft_entries"].runner.program.name])


def test_a_post_head_without_context_is_missed(pair):
    target, _, drafter = pair
    draft = Context(drafter, 64, graph_type="draft")
    entries = Context(drafter, 64, graph_type="entries", drafter="dspark", host=draft)
    with pytest.raises(LinkError, match="markov"):
        Cross(llm=Context(target, 64), draft=draft, draft_entries=entries)


def test_a_block_whose_rounds_are_the_cores_is_no_tree(pair):
    target, _, drafter = pair
    shape = mtpcore.TreeShape(depth=2, width=2, n_nodes=3)
    with pytest.raises(LinkError, match="cannot draft trees"):
        link(Context(target, 64), draft_model=drafter, tree=shape)


def test_logits_that_are_no_numbers_end_a_draft(pair, caplog):
    """Where all logits are written; a fused choice takes the lowest id there."""
    cross = by_the_host(link(Context(pair[0], 64), draft_model=pair[1]))
    cross.llm.process(Batch.of([3, 5, 8, 1, 9]))
    runner = cross.contexts["draft"].runner
    plan, run = runner.plan, runner.plan.run

    def spoilt(batch, memory):
        arrays = run(batch, memory)
        arrays["logits"][1, 3] = np.nan
        return arrays

    plan.run = spoilt
    assert len(cross.draft(0, 4, Sampling(top_k=5, seed=1))) == 1
    assert cross.paused == 1
    assert "not finite" in caplog.text


@pytest.mark.parametrize("place", range(4))
def test_rows_that_are_not_finite_end_what_a_post_head_drafts(pair, place, caplog):
    """Of that sequence alone: another one's rows lie where they did."""
    target, _, drafter = pair
    cross = by_the_host(link(Context(target, 64, n_seq_max=3), draft_model=drafter))
    for seq in range(3):
        cross.llm.process(Batch.of([3, 5, 8, 1, seq], seq=seq))
    lengths = {0: 2, 1: 4, 2: 3}
    wanted = cross.draft(lengths)
    assert [len(ids) for ids in wanted.values()] == [2, 4, 3]
    plan = cross.contexts["draft"].runner.plan
    run = plan.run

    def spoilt(batch, memory):
        arrays = run(batch, memory)
        arrays["logits"][2 + place, 3] = np.inf
        return arrays

    plan.run = spoilt
    assert cross.draft(lengths) == wanted | {1: wanted[1][:place]}
    assert cross.paused == 1
    assert "not finite" in caplog.text
