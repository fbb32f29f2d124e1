"""Heads for each step: what they read, the widths of their rows, what runs before them, trees."""

import msgspec
import numpy as np
import pytest
import toy
from harness.families import FAMILIES
from harness.search import searching
from harness.step_heads import BLIND, N_HEADS, NARROW, SPECS, STEPS, step, tensors_of, written
from hypothesis import HealthCheck
from hypothesis.stateful import run_state_machine_as_test

from mtpcore import (
    Batch,
    Context,
    GraphError,
    LinkError,
    PluginError,
    Sampling,
    TreeShape,
    link,
    load_model,
)
from mtpcore.backends.cpu import CpuPlan
from mtpcore.declarations.checks import check_spec
from mtpcore.discovery.registry import Registry
from mtpcore.plugin import Feed, Fit, Heads, Outputs
from mtpcore.testing import Batching, Subject, Texts, check_drafts, check_rows, check_texts
from mtpcore.testing.machine import machine_of

PROMPT = [7, 3, 9, 12, 4, 8, 5, 5, 2]
WARM = Sampling(temperature=1.0, seed=3)
GROWN = TreeShape(depth=3, width=2, n_nodes=6)
FIXED = TreeShape(paths=((0,), (1,), (2,), (0, 0), (1, 1), (0, 0, 0), (1, 1, 1)))


def gelu(x):
    from math import erf

    return x * (1 + np.vectorize(erf)(x / 2**0.5)) / 2


def normed(x):
    return x / np.sqrt(np.mean(x**2) + toy.EPS)


@pytest.fixture(scope="module", params=SPECS)
def subject(request, tmp_path_factory):
    return written(tmp_path_factory.mktemp(request.param), request.param)


def scores_of(subject):
    """Return the heads once more, in NumPy."""
    w = {name: tensor.array() for name, tensor in subject.model.tensors.items()}

    def scores(tokens, rows, drafts):
        row, kept, found = rows["hidden"][-1], 0.0, []
        state = w["entry.weight"] @ row if subject.name == "entry" else row
        for i, token in enumerate([tokens[-1], *drafts[:-1]]):
            part = {name: w[f"blk.{toy.N_LAYERS + i}.{name}.weight"] for name in ("step", "out")}
            x = part["step"] @ state
            if subject.name == "blind":
                found.append(part["out"] @ (x / (1 + np.exp(-x))))
                continue
            x = normed(x + w[f"blk.{toy.N_LAYERS + i}.embed.weight"][token])
            kept = 0.5 * kept + x
            state = gelu(kept if subject.name == "cell" else x)
            found.append(part["out"] @ state)
            if subject.name == "reduced":
                every = np.full(toy.N_VOCAB, -np.inf)
                every[w["d2t"].astype(int)] = found[-1]
                found[-1] = every
        return found

    return scores


def test_drafts_are_those_of_the_formula(subject):
    assert check_drafts(subject, scores_of(subject), k=N_HEADS, n_tokens=12) > 40


def test_heads_hold_nothing_and_read_one_row_each(subject):
    cross = link(Context(subject.model, 64))
    cross.llm.process(Batch.of(PROMPT))
    heads = [cross.contexts[role].runner for role in cross.contexts if "entry" not in role][1:]
    assert len(heads) == N_HEADS
    seen = []
    for runner in heads:
        admit = runner.admit
        runner.admit = lambda batch, *more, admit=admit: (seen.append(len(batch)), admit(batch))[1]
    for _ in range(3):
        drafts = cross.draft(0, N_HEADS, WARM)
        assert len(drafts) == N_HEADS
        cross.verify({0: drafts}, WARM)
        cross.accept(0)
        cross.digest(0)
    assert seen == [1] * 3 * N_HEADS
    assert [runner.lengths[0] for runner in heads] == [0] * N_HEADS


@pytest.mark.parametrize("tree", [None, GROWN, FIXED], ids=["chain", "grown", "fixed"])
def test_texts_stay_the_same(subject, tree):
    spec = subject.spec
    if tree is not None:
        spec = msgspec.structs.replace(spec, shape="tree", tree=tree)
    for sampling in (WARM, Sampling.greedy()):
        check_texts(subject, Texts(k=N_HEADS, sampling=sampling), spec)


def first_path(tree):
    """Return the tokens on the way that takes the first child of each node."""
    tokens, at = [], -1
    while (children := np.flatnonzero(tree.parent == at)).size:
        at = int(children[0])
        tokens.append(int(tree.tokens[at]))
    return tokens


KEEPING = next(one for one in FAMILIES if one.spec.heads.order == "each-step")
SAMPLINGS = pytest.mark.parametrize(
    "sampling", [WARM, Sampling.greedy()], ids=["sampled", "greedy"]
)


def drafted(subject, sampling, tree):
    cross = link(Context(subject.model, 64), tree=tree)
    for begin in range(0, len(PROMPT), 3):
        cross.llm.process(Batch.of(PROMPT[begin : begin + 3], pos=begin))
        drafts = cross.draft(0, N_HEADS, sampling)
        yield list(drafts) if tree is None else first_path(drafts)


def check_first_children(subject, sampling):
    """The first children are what a chain drafts; a grown tree may leave that way early."""
    chains, paths, fixed = ([*drafted(subject, sampling, t)] for t in (None, GROWN, FIXED))
    assert fixed == chains
    assert {len(chain) for chain in chains} == {N_HEADS}
    assert all(
        path and chain[: len(path)] == path for chain, path in zip(chains, paths, strict=True)
    )


@SAMPLINGS
def test_the_first_children_of_a_tree_are_the_chain(subject, sampling):
    check_first_children(subject, sampling)


@SAMPLINGS
def test_the_first_children_of_a_tree_are_the_chain_of_heads_with_a_memory(sampling):
    check_first_children(KEEPING, sampling)


@pytest.mark.parametrize("shape", [GROWN, FIXED], ids=["grown", "fixed"])
def test_the_children_of_each_node_are_the_best_behind_it(subject, shape):
    """By the formula, given the drafts on the way."""
    llm = Context(subject.model, 64, taps=["hidden"])
    cross, scores = link(llm, tree=shape), scores_of(subject)
    rows = {"hidden": llm.process(Batch.of(PROMPT)).tap("hidden")}
    tree = cross.draft(0, N_HEADS)
    pending, n_compared = cross.pending(0, Sampling.greedy()), 0
    for node in range(-1, len(tree)):
        path, at = [], node
        while at >= 0:
            path.append(int(tree.tokens[at]))
            at = int(tree.parent[at])
        children = tree.tokens[tree.parent == node].tolist()
        if children:
            best = np.argsort(
                -scores([*PROMPT, pending], rows, [*path[::-1], 0])[-1], kind="stable"
            )
            assert children == best[: len(children)].tolist() or shape is FIXED
            assert set(children) <= set(best[:3].tolist())
            n_compared += len(children)
    assert n_compared == len(tree)


def test_a_head_that_reads_no_drafts_runs_once_for_a_level(tmp_path, monkeypatch):
    cross = link(Context(written(tmp_path, "blind").model, 64), tree=GROWN)
    cross.llm.process(Batch.of(PROMPT))
    run_schedule, rows = CpuPlan.run_schedule, []

    def count(plan, schedule):
        rows.extend(len(one.batch.tokens) for one in schedule.rows)
        return run_schedule(plan, schedule)

    monkeypatch.setattr(CpuPlan, "run_schedule", count)
    drafts = cross.draft(0, 3)
    assert rows == [1, 1, 1]
    assert len(drafts) == GROWN.n_nodes


@pytest.mark.parametrize("shape", [GROWN, FIXED], ids=["grown", "fixed"])
def test_trees_of_heads_with_a_memory(shape):
    spec = msgspec.structs.replace(KEEPING.spec, shape="tree", tree=shape)
    for k in (1, N_HEADS):
        assert check_texts(KEEPING, Texts(k=k, sampling=WARM, n_batch=9), spec) > 0


def test_rows_do_not_depend_on_others(subject):
    check_rows(subject, Batching(chunk=4, n_batch=3, neighbours=2))


@pytest.mark.hypothesis
def test_any_order_of_acts_leaves_what_a_context_without_drafts_holds(subject):
    few = searching(6, stateful_step_count=16, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine_of(subject), settings=few)


def test_drafts_go_on_behind_rows_that_are_no_tokens(subject):
    """Or pause, where a further graph would have to read them."""
    cross = link(Context(subject.model, 64))
    rows = np.random.default_rng(0).normal(size=(3, toy.WIDTH)).astype(np.float32)
    cross.llm.process(Batch.of(PROMPT))
    cross.llm.process(Batch([-1] * 3, pos=len(PROMPT), embeddings=rows))
    cross.llm.process(Batch.of([5], pos=len(PROMPT) + 3))
    assert len(cross.draft(0, 3)) == (0 if subject.name == "entry" else 3)
    assert cross.paused == (subject.name == "entry")


@pytest.mark.parametrize("tree", [None, GROWN], ids=["chain", "grown"])
@pytest.mark.parametrize("name", ["steps", "blind"])
def test_a_single_head_that_makes_no_row_for_itself_drafts_one_token(name, tree, tmp_path):
    """Its rows are of another width, or it makes none: the target has none behind the newest."""
    tensors = toy.trunk_tensors() | tensors_of(name, n_heads=1)
    path = toy.write(tmp_path / "one.gguf", tensors)
    model = load_model(path, plugins=Registry.of(toy, toy.offering(SPECS[name])))
    cross = link(Context(model, 64), tree=tree)
    cross.llm.process(Batch.of(PROMPT))
    assert len(cross.draft(0, 4)) == (1 if tree is None else GROWN.width)


def test_the_width_is_the_files(tmp_path, caplog):
    tensors = toy.trunk_tensors() | tensors_of("steps")
    path = toy.write(tmp_path / "other.gguf", tensors, **{"toy.narrow": NARROW - 1})
    model = load_model(path, plugins=Registry.of(toy, toy.offering(STEPS)))
    with pytest.raises(GraphError, match=r"blk\.3\.step"):
        link(Context(model, 64))
    path = toy.write(tmp_path / "broken.gguf", tensors, **{"toy.narrow": -1})
    assert not load_model(path, plugins=Registry.of(toy, toy.offering(STEPS))).drafters
    assert "toy.narrow" in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"heads": Heads()},
        {"heads": Heads(order="each-step", hidden_from="target")},
        {"feeds": (Feed(slot="state", width=NARROW),)},
        {"feeds": (Feed(slot="state", taps=(), recycle="state"),)},
        {"feeds": (Feed(slot="state", taps=(), width=NARROW),)},
    ],
)
def test_a_width_of_no_recycled_row_is_refused(changes):
    with pytest.raises(PluginError, match=r"a width|without taps"):
        check_spec(msgspec.structs.replace(STEPS, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"feeds": (*BLIND.feeds, Feed(slot="cell", taps=(), recycle="cell", width=NARROW))},
        {
            "fit": Fit(architectures=frozenset({"toy"}), tensors=("blk.2.step.weight",)),
            "heads": Heads(count=3, order="each-step", hidden_from="target"),
            "feeds": (Feed(slot="state", recycle="state"),),
        },
    ],
    ids=["a state", "several"],
)
def test_heads_that_read_the_target_recycle_nothing(changes):
    with pytest.raises(PluginError, match="hand on none") as caught:
        check_spec(msgspec.structs.replace(BLIND, **changes))
    assert "hidden_from='previous'" in caught.value.fix


def test_a_file_may_hold_one_head_that_recycles():
    """Blocks are counted in the file: what is declared for one head holds there."""
    check_spec(msgspec.structs.replace(BLIND, feeds=(Feed(slot="state", recycle="state"),)))


def test_heads_with_a_memory_have_rows_of_one_width(tmp_path):
    def attentive(g, inputs, h):
        out = step(g, inputs, h)
        x = g.split_heads(out.rows["state"], 1)
        x = g.merge_heads(g.attention(x, x, x, layer=g.n, scale=0.25))
        return Outputs(logits=out.logits, state=x)

    subject = written(tmp_path, "steps", build=attentive)
    with pytest.raises(LinkError, match="heads with a memory") as caught:
        link(Context(subject.model, 64))
    assert "'state'" in caught.value.where


def test_a_state_of_another_width_than_its_slot_is_refused(tmp_path):
    def wide(g, inputs, h):
        out = step(g, inputs, h)
        return Outputs(logits=out.logits, state=g.concat(out.rows["state"], out.rows["state"]))

    subject = written(tmp_path, "steps", build=wide)
    with pytest.raises(LinkError, match="of another width") as caught:
        link(Context(subject.model, 64))
    assert caught.value.wanted == f"{NARROW} values a row"


@pytest.mark.parametrize("keeps", [False, True])
def test_a_repeated_head_has_a_state_that_begins_with_zeros(tmp_path, keeps):
    """With a KV cache or without: at each pending token anew."""

    def build(g, inputs, h):
        x = g.concat(g.embed(inputs.tokens, "token_embd.weight"), inputs["hidden"])
        x = g.matmul(x, "blk.{n}.join.weight")
        if keeps:
            part = g.split_heads(x, 2)
            x = g.add(x, g.merge_heads(g.attention(part, part, part, layer=g.n, scale=0.25)))
        kept = g.add(g.scale(inputs["cell"], 0.5), g.rms_norm(x, None, toy.EPS))
        return Outputs(logits=g.matmul(g.output_rows(kept), "output.weight"), x=kept, cell=kept)

    spec = toy.replaced(
        name="kept",
        build=build,
        feeds=(
            Feed(slot="hidden", recycle="x"),
            Feed(slot="cell", taps=(), recycle="cell", width=toy.WIDTH),
        ),
    )
    path = toy.write(tmp_path / "kept.gguf", toy.trunk_tensors() | toy.head_tensors(), heads=1)
    plugins = Registry.of(toy, toy.offering(spec))
    subject = Subject("kept", str(path), drafter="kept", plugins=plugins)
    w = {name: tensor.array() for name, tensor in subject.model.tensors.items()}

    def scores(tokens, rows, drafts):
        row, kept, found = rows["hidden"][-1], 0.0, []
        for token in [tokens[-1], *drafts[:-1]]:
            x = w["blk.2.join.weight"] @ np.concatenate([w["token_embd.weight"][token], row])
            row = kept = 0.5 * kept + normed(x)
            found.append(w["output.weight"] @ kept)
        return found

    assert check_drafts(subject, None if keeps else scores, k=4, n_tokens=10) > 40
    for tree in (None, GROWN):
        changes = {} if tree is None else {"shape": "tree", "tree": tree}
        check_texts(subject, Texts(k=4, sampling=WARM), msgspec.structs.replace(spec, **changes))
