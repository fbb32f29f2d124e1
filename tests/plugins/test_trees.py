"""Trained heads that draft trees: the references' texts, in fewer passes than their chains take."""

from pathlib import Path

import numpy as np
import pytest
from harness.fixtures import model_file
from harness.scripted import run

from mtpcore import Batch, Context, DraftTree, Generator, Sampling, TreeShape, link, load_model

DATA = Path(__file__).parents[1] / "data"
SHAPES = [TreeShape(depth=3, width=3, n_nodes=8), TreeShape(depth=6, width=6, n_nodes=30)]


@pytest.fixture(scope="module")
def refs():
    with np.load(DATA / "glm-11" / "refs.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def glm():
    with load_model(model_file("glm-11")) as model:
        yield model


def text(cross, prompts, sampling, draft, n):
    generator = Generator(cross, sampling=sampling, draft=draft)
    made = [generator.add(list(map(int, p)), max_tokens=n, ignore_eos=True) for p in prompts]
    run(generator)
    return [request.tokens for request in made], generator.stats


@pytest.mark.parametrize(("backend", "n"), [("cpu", 6), ("reference", 1)])
def test_a_head_as_a_tree_writes_the_references(glm, refs, backend, n):
    """Greedy, all prompts together; and a tree reaches further than its chain."""
    lengths = []
    for tree in (None, *SHAPES[: 2 if backend == "cpu" else 1]):
        llm = Context(glm, 160, n_seq_max=n, kv_dtype="f32", threads=2, backend=backend)
        cross = link(llm, tree=tree)
        wanted = refs["greedy"][:n].tolist()
        found, stats = text(cross, refs["prompts"][:n], Sampling.greedy(), 3, len(wanted[0]))
        assert found == wanted
        assert sum(stats.accepted_per_position) == stats.accepted
        lengths.append(stats.accepted / stats.verify_steps)
    assert lengths[1] > lengths[0] + 0.2


@pytest.fixture(scope="module", params=["nextn", "fused"])
def pair(request, glm, refs):
    """A head in the model's file, and one of two graphs in a file of its own; and a prompt."""
    if request.param == "nextn":
        return glm, None, refs["prompts"][0]
    return load_model("demo:eagle3"), load_model("demo:eagle3-draft"), [5, 9, 11, 40, 2]


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
def test_each_kind_of_head(pair, temperature):
    """The same text, in fewer passes."""
    target, drafter, prompt = pair
    sampling = Sampling(temperature=temperature, seed=4)
    wanted, _ = text(Context(target, 200), [prompt], sampling, 0, 60)
    lengths = []
    for tree in (None, SHAPES[1]):
        cross = link(Context(target, 200), draft_model=drafter, tree=tree)
        found, stats = text(cross, [prompt], sampling, 6, 60)
        assert found == wanted
        lengths.append(stats.tokens_per_pass)
    assert lengths[1] > lengths[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_first_children_are_the_chain(pair, temperature):
    """Bit for bit the same rows: each is run with what its own parent recycles."""
    target, drafter, prompt = pair
    sampling, found = Sampling(temperature=temperature, seed=4), []
    fixed = TreeShape(paths=((1, 0, 1), (0, 0, 0, 0), (0, 1, 0)))
    for tree in (None, fixed):
        cross = link(Context(target, 200), draft_model=drafter, tree=tree)
        cross.llm.process(Batch.of(prompt))
        found.append([])
        for _ in range(8):
            draft = cross.draft(0, 4, sampling)
            if tree:
                at, ids = -1, []
                while below := draft.children(at):
                    at = below[-1 if at < 0 else 0]  # the second best was declared first
                    ids.append(int(draft.tokens[at]))
                draft = ids
            found[-1].append(draft)
            cross.verify({0: []}, sampling)
            cross.accept(0)
    assert found[0] == found[1]


def test_state_after_trees_is_that_of_the_text(glm, refs):
    """Every role's digest, and the drafts made from it."""
    sampling = Sampling(temperature=0.9, seed=6)
    prompt = refs["prompts"][1]
    cross = link(Context(glm, 160), tree=SHAPES[1])
    cross.llm.process(Batch.of(prompt))
    for n in (None, 0, 1, None, None):
        tree = cross.draft(0, 5, sampling)
        assert isinstance(tree, DraftTree)
        verdict = cross.verify({0: tree}, sampling)[0]
        cross.accept(0, None if n is None else min(n, verdict.accepted))
        fresh = link(Context(glm, 160), tree=SHAPES[1])
        fresh.llm.process(Batch.of(cross.tokens(0)))
        assert cross.digest(0) == fresh.digest(0)
        assert cross.pending(0) == fresh.pending(0, sampling)
    assert cross.draft(0, 5, sampling) == fresh.draft(0, 5, sampling)
