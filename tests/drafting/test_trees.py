"""A graph that drafts trees: what its chains would be is in them, and texts do not change."""

import logging

import numpy as np
import pytest
from harness.hashed import FUSED, N_VOCAB, SPEC, HashModel
from harness.scripted import assert_fresh, cross_of, plain, run, settings
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import Batch, DraftTree, Generator, LinkError, Sampling, TreeShape
from mtpcore.declarations.spec import Fit

PROMPT = [3, 1, 4]
GROWN = TreeShape(depth=4, width=3, n_nodes=9)
shapes = st.sampled_from(
    [
        GROWN,
        TreeShape(depth=2, width=5, n_nodes=30),
        TreeShape(depth=5, width=1, n_nodes=4),
        TreeShape(paths=((0,), (1,), (0, 0), (2, 1), (0, 0, 0), (0, 3))),
    ]
)
requests = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=20),
            "sampling": settings(),
            "draft": st.integers(0, 6),
            "max_tokens": st.integers(1, 20),
            "draft_sampler": st.sampled_from(["coupled", "argmax"]),
            "p_min": st.sampled_from([0.0, 0.0, 0.1]),
        }
    ),
    min_size=1,
    max_size=4,
)


@searching(80)
@given(
    wanted=requests,
    shape=shapes,
    spec=st.sampled_from([SPEC, FUSED]),
    skill=st.integers(0, 16),
    nan=st.sampled_from([0, 0, 4]),
    n_batch=st.sampled_from([1, 2, 5, 16, 64]),
    n_ctx=st.sampled_from([40, 90]),
    fails=st.sampled_from([None, 7, 60]),
)
def test_texts_are_those_of_plain_decoding(wanted, shape, spec, skill, nan, n_batch, n_ctx, fails):
    truths = [plain(w["prompt"], w["sampling"], w["max_tokens"]) for w in wanted]
    cross, backend = cross_of(
        "head",
        skill=skill,
        nan=nan,
        n_batch=n_batch,
        n_ctx=n_ctx,
        model=HashModel(spec),
        tree=shape,
    )
    generator = Generator(cross)
    backend.fail_at = fails
    made = [generator.add(**w) for w in wanted]
    run(generator)
    assert [r.tokens for r in made] == truths
    stats = generator.stats
    assert stats.accepted == sum(stats.accepted_per_position)
    assert stats.drafted >= stats.accepted
    assert len(stats.accepted_per_position) <= 6


@pytest.mark.parametrize("draft_sampler", ["coupled", "argmax"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
def test_first_children_are_the_chain(temperature, draft_sampler):
    """And a tree of width one is a chain; the state afterwards is the same as well."""
    sampling = Sampling(temperature=temperature, seed=5, repetition_penalty=1.2)
    for shape in (
        GROWN,
        TreeShape(depth=4, width=1, n_nodes=4),
        TreeShape(paths=((0, 0, 0, 0), (2, 1))),
    ):
        (chain, _), (tree, _) = (cross_of("head", skill=9, tree=tree) for tree in (None, shape))
        text = [*PROMPT, *plain(PROMPT, sampling, 12)]
        for n in range(3, 12):
            for cross in (chain, tree):
                cross.remove(0)
                cross.llm.process(Batch.of(text[:n]))
            ids = chain.draft(0, 4, sampling, draft_sampler=draft_sampler)
            made = tree.draft(0, 4, sampling, draft_sampler=draft_sampler)
            assert isinstance(made, DraftTree)
            at, firsts = -1, []
            while below := made.children(at):
                at = below[0]
                firsts.append(int(made.tokens[at]))
            assert firsts == ids[: len(firsts)]
            assert len(firsts) >= (1 if shape is GROWN else 4)
            if shape.width == 1:
                assert made == DraftTree(ids, range(-1, 3))
            assert tree.digest(0) == chain.digest(0)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
def test_a_head_that_is_always_right_is_always_accepted(temperature):
    sampling = Sampling(temperature=temperature, seed=3)
    cross, _ = cross_of("head", skill=16, tree=GROWN, n_batch=64)
    cross.llm.process(Batch.of(PROMPT))
    for _ in range(8):
        tree = cross.draft(0, 4, sampling)
        assert cross.verify({0: tree}, sampling)[0].accepted >= 2
        cross.accept(0)
    assert_fresh(cross, 0, cross.tokens(0))


def test_trees_are_as_deep_as_was_asked(caplog):
    """The drafter itself stops there: nothing is cut, and nothing is warned of."""
    cross, _ = cross_of("head", tree=TreeShape(depth=4, width=3, n_nodes=60), n_batch=64)
    cross.llm.process(Batch.of(PROMPT))
    with caplog.at_level(logging.WARNING, logger="mtpcore"):
        for k in range(7):
            depth = cross.draft(0, k).depth.tolist() if k else cross.draft(0, k)
            assert max(depth, default=0) == min(k, 4)
    assert not caplog.records


def test_rows_that_are_not_finite_leave_a_shallow_tree(caplog):
    cross, _ = cross_of("head", tree=GROWN, nan=16, n_batch=64)
    cross.llm.process(Batch.of(PROMPT))
    with caplog.at_level(logging.WARNING, logger="mtpcore"):
        for _ in range(2):
            tree = cross.draft(0, 4)
            assert tree.depth.tolist() == [1, 1, 1]
    assert cross.paused == 2
    assert len(caplog.records) == 1


@pytest.mark.parametrize("left", [0, 1, 2, 3, 7])
def test_at_the_end_of_the_context(left):
    """No more nodes than places are left, in the target and in the drafter's own passes."""
    prompt = [n % N_VOCAB for n in range(23 - left)]
    cross, _ = cross_of("head", tree=GROWN, n_ctx=24, n_batch=64)
    cross.llm.process(Batch.of(prompt))
    tree = cross.draft(0, 4)
    assert len(tree) <= left
    assert bool(len(tree)) == bool(left)
    cross.verify({0: tree})
    cross.accept(0)
    assert_fresh(cross, 0, cross.tokens(0), n_ctx=24)


def test_what_cannot_grow():
    for shape in (
        TreeShape(),
        TreeShape(depth=2, width=2),
        TreeShape(depth=2, width=2, n_nodes=-1),
        TreeShape(paths=((0,), ())),
        TreeShape(paths=((0, -1),)),
        TreeShape(paths=((0,),), depth=2),
    ):
        with pytest.raises(LinkError, match="paths of ranks from 0 on, or depth"):
            cross_of("head", tree=shape)
    model = HashModel()
    model.drafters = (
        type(SPEC)(name="hashed", fit=Fit(), shape="proposer", proposer=lambda model: None),
    )
    with pytest.raises(LinkError, match="cannot draft trees"):
        cross_of("head", tree=GROWN, model=model)


def test_many_sequences_grow_together():
    """Each tree is what it is alone."""
    texts = [np.random.default_rng(s).integers(0, N_VOCAB, 5 + s).tolist() for s in range(4)]
    sampling = Sampling(temperature=1.0, seed=2)
    alone = []
    for text in texts:
        cross, _ = cross_of("head", tree=GROWN, n_batch=64)
        cross.llm.process(Batch.of(text))
        alone.append(cross.draft(0, 4, sampling))
    for n_batch in (10, 64):
        cross, _ = cross_of("head", tree=GROWN, n_batch=n_batch)
        for seq, text in enumerate(texts):
            cross.llm.process(Batch.of(text, seq=seq))
        made = cross.draft(dict.fromkeys(range(4), 4), sampling=sampling)
        for seq in range(4):
            assert made[seq] == alone[seq].select(np.arange(len(alone[seq])) < n_batch - 1)
