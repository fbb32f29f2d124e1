"""Growing trees against the words of the paper, and fixed trees against their paths."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import TreeShape
from mtpcore.drafting.growing_tree import GrowingTree, max_depth

N_VOCAB = 7


def distribution(path, seed):
    """Some distribution after a path of tokens, best token first."""
    rng = np.random.default_rng([seed, *path])
    p = rng.dirichlet(np.full(N_VOCAB, 0.4))
    order = np.argsort(-p, kind="stable")
    return order.astype(np.int32), p[order].astype(np.float32), p[order]


def grow(shape, seed, depth=9, room=999, n_tokens=0, broken=(), p_min=0.0):
    tree, runs = GrowingTree(shape, depth, n_tokens), []

    def branch(node):
        path = tuple(tree.tokens[i] for i in tree.path(node))
        fed = None if path in broken else {"hidden": path}
        ranked = distribution(path, seed)
        n = tree.n_ranked(node)
        tree.branch(node, [column[:n] for column in ranked], fed, p_min)

    branch(-1)
    while level := tree.next_level(room):
        runs.append([tuple(tree.tokens[i] for i in tree.path(node)) for node in level])
        for node in level:
            assert tree.slot_rows[node]["hidden"] == runs[-1][level.index(node)][:-1]
            branch(node)
    return tree.tree(), runs


def paths(tree):
    found = []
    for token, above in zip(tree.tokens.tolist(), tree.parent.tolist(), strict=True):
        found.append((*(found[above] if above >= 0 else ()), token))
    return found


@given(
    st.builds(
        TreeShape, depth=st.integers(1, 5), width=st.integers(1, 4), n_nodes=st.integers(1, 20)
    ),
    st.integers(0, 999),
)
def test_a_grown_tree_is_that_of_the_paper(shape, seed):
    """The width best children of the width best nodes of each level; of all the n_nodes best."""

    def worth(path):
        parts = [distribution(path[:i], seed) for i in range(len(path))]
        return math.prod(
            p[tokens.tolist().index(t)] for t, (tokens, _, p) in zip(path, parts, strict=True)
        )

    beam, pool, beams = [()], [], []
    for _ in range(shape.depth):
        children = []
        for path in beam:
            children += [(*path, int(t)) for t in distribution(path, seed)[0][: shape.width]]
        pool += children
        beam = sorted(children, key=worth, reverse=True)[: shape.width]
        beams.append(beam)
    wanted = sorted(pool, key=worth, reverse=True)[: shape.n_nodes]
    tree, runs = grow(shape, seed)
    assert runs == beams[:-1]
    assert paths(tree) == wanted
    firsts = {path[:-1]: path for path in reversed(paths(tree))}
    for path in paths(tree):  # whoever has children has the first one
        assert firsts[path[:-1]][-1] == distribution(path[:-1], seed)[0][0]
    assert all(worth(a) >= worth(b) for a, b in pairwise(paths(tree)))


def test_a_fixed_tree_is_its_paths():
    shape = TreeShape(paths=((0,), (2, 1), (0, 0), (0, 0, 3)))
    assert max_depth(shape) == 3
    tree, runs = grow(shape, 5)
    starts = [(0,), (2,), (2, 1), (0, 0), (0, 0, 3)]

    def tokens(ranks):
        path = ()
        for rank in ranks:
            path = (*path, int(distribution(path, 5)[0][rank]))
        return path

    assert paths(tree) == [tokens(ranks) for ranks in starts]
    assert [set(level) for level in runs] == [{tokens((0,)), tokens((2,))}, {tokens((0, 0))}]
    short, _ = grow(shape, 5, depth=2)
    assert paths(short) == [tokens(ranks) for ranks in starts[:4]]


def test_what_keeps_nodes_from_being_run():
    """A row that is not finite, a token without an embedding, no room, a floor of probability."""
    shape = TreeShape(depth=3, width=3, n_nodes=99)
    whole, runs = grow(shape, 3)
    best = runs[0][0]
    tree, _ = grow(shape, 3, broken={()})
    assert tree.depth.max() == 1
    tree, _ = grow(shape, 3, broken={best})
    assert set(paths(tree)) >= {p for p in paths(whole) if len(p) == 2 and p[:1] == best}
    assert not {p for p in paths(tree) if len(p) == 3 and p[:1] == best}
    tree, runs = grow(shape, 3, n_tokens=3)
    assert all(max(path) < 3 for level in runs for path in level)
    assert max(tree.tokens) >= 3
    _, runs = grow(shape, 3, room=2)
    assert [len(level) for level in runs] in ([2, 1], [2])
    tree, _ = grow(shape, 3, p_min=0.3)
    for path in paths(tree):
        ids, p, _ = distribution(path[:-1], 3)
        assert p[ids.tolist().index(path[-1])] >= 0.3
    assert 0 < len(tree) < len(whole)


@pytest.mark.parametrize(("shape", "depth"), [(TreeShape(depth=4, width=1, n_nodes=2), 4)])
def test_how_deep_a_tree_goes(shape, depth):
    assert max_depth(shape) == depth
    tree, runs = grow(shape, 1)
    assert tree.is_chain
    assert len(tree) == 2
    assert len(runs) == 3
