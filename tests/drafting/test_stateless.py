"""Heads without a memory: they hold nothing, read nothing again, and draft behind any row."""

import numpy as np
import pytest
import toy
from harness.search import searching
from hypothesis import HealthCheck
from hypothesis.stateful import run_state_machine_as_test

from mtpcore import Batch, Context, Sampling, TreeShape, link
from mtpcore.discovery.registry import Registry
from mtpcore.testing import Batching, Subject, Texts, check_broken_rows, check_rows, check_texts
from mtpcore.testing.machine import machine_of

PROMPT = [7, 3, 9, 12, 4, 8, 5, 5, 2]
WARM = Sampling(temperature=1.0, seed=3)
TREES = [None, TreeShape(depth=3, width=2, n_nodes=5)]


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    tensors = toy.trunk_tensors() | toy.head_tensors()
    path = toy.write(tmp_path_factory.mktemp("stateless") / "toy.gguf", tensors, heads=1)
    return Subject("toy", str(path), plugins=Registry.of(toy))


def linked(subject, tree=None, **settings):
    return link(Context(subject.model, 64, **settings), tree=tree)


@pytest.mark.parametrize("tree", TREES)
def test_a_draft_reads_the_pending_token_alone(subject, tree):
    cross = linked(subject, tree)
    cross.llm.process(Batch.of(PROMPT))
    runner, seen = cross.contexts["draft"].runner, []
    admit = runner._admission.admit
    runner.admit = lambda batch, *more: (seen.append(batch.tokens.tolist()), admit(batch, *more))[1]
    for _ in range(3):
        first = len(seen)
        drafts = cross.draft(0, 3, WARM)
        assert len(seen[first]) == 1
        assert all(len(tokens) <= 2 for tokens in seen[first:])  # a level of the tree
        assert runner.lengths[0] == 0
        cross.verify({0: drafts}, WARM)
        cross.accept(0)
    cross.digest(0)
    assert runner.lengths[0] == 0


@pytest.mark.parametrize("tree", TREES)
def test_drafts_are_those_of_the_formula(subject, tree):
    """Greedy ones; of a tree the first child of each node is what a chain drafts there."""
    cross = linked(subject, tree)
    out = Context(subject.model, 64, taps=["hidden"]).process(Batch.of(PROMPT))
    w = {name: tensor.array() for name, tensor in subject.model.tensors.items()}
    row, token, wanted = out.tap("hidden")[-1], int(out.logits[-1].argmax()), []
    cross.llm.process(Batch.of(PROMPT))
    for _ in range(3):
        x = w["blk.2.join.weight"] @ np.concatenate([w["token_embd.weight"][token], row])
        row = x / np.sqrt(np.mean(x**2) + toy.EPS)
        token = int((w["output.weight"] @ row).argmax())
        wanted.append(token)
    draft = cross.draft(0, 3)
    if tree is None:
        assert draft == wanted
        return
    tokens, parents, path = draft.tokens.tolist(), draft.parent.tolist(), [-1]
    for token in wanted:
        children = [i for i, parent in enumerate(parents) if parent == path[-1]]
        path.append(next(i for i in children if tokens[i] == token))


@pytest.mark.parametrize("tree", TREES)
def test_drafts_go_on_behind_rows_that_are_no_tokens(subject, tree):
    cross = linked(subject, tree)
    rows = np.random.default_rng(0).normal(size=(3, toy.WIDTH)).astype(np.float32)
    cross.llm.process(Batch.of(PROMPT))
    cross.llm.process(Batch([-1] * 3, pos=len(PROMPT), embeddings=rows))
    cross.llm.process(Batch.of([5], pos=len(PROMPT) + 3))
    assert len(cross.draft(0, 3)) >= 3
    assert cross.paused == 0


@pytest.mark.parametrize("tree", TREES)
def test_the_kit_holds(subject, tree):
    for k in (1, 4):
        spec = subject.spec if tree is None else toy.replaced(shape="tree", tree=tree)
        check_texts(subject, Texts(k=k, sampling=WARM), spec)
    check_rows(subject, Batching(chunk=4, n_batch=3, neighbours=2))
    check_broken_rows(subject, place=5)


@pytest.mark.hypothesis
def test_any_order_of_acts_leaves_what_a_context_without_drafts_holds(subject):
    few = searching(12, stateful_step_count=20, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine_of(subject), settings=few)
