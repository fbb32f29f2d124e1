"""Trees of drafts as values: what is one, what is none, and what is left of one that is cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import BatchError, DraftTree


@st.composite
def trees(draw, n_vocab=9):
    """Any tree, with no token twice among siblings."""
    tokens, parent, seen = [], [], set()
    for _ in range(draw(st.integers(0, 12))):
        one = draw(st.integers(-1, len(tokens) - 1)), draw(st.integers(0, n_vocab - 1))
        if one not in seen:
            seen.add(one)
            parent.append(one[0])
            tokens.append(one[1])
    return DraftTree(tokens, parent)


def paths(tree):
    """Return the tokens on the way to each node."""
    found = []
    for token, above in zip(tree.tokens.tolist(), tree.parent.tolist(), strict=True):
        found.append([*(found[above] if above >= 0 else []), token])
    return found


@given(trees(), st.data())
def test_what_is_selected_is_a_tree_of_whole_paths(tree, data):
    kept = data.draw(st.lists(st.booleans(), min_size=len(tree), max_size=len(tree)))
    left = tree.select(kept)
    wanted = []
    for node, path in enumerate(paths(tree)):
        above, whole = node, True
        while above >= 0:
            whole, above = whole and kept[above], int(tree.parent[above])
        if whole:
            wanted.append(path)
    assert paths(left) == wanted
    assert left.depth.tolist() == [len(path) for path in wanted]
    assert left == DraftTree(left.tokens.tolist(), left.parent)
    assert hash(left) == hash(DraftTree(left.tokens.tolist(), left.parent))
    first = tree.select(np.arange(len(tree)) < 4)
    assert first.tokens.tolist() == tree.tokens.tolist()[:4]  # cut from its end nothing else goes


@given(trees())
def test_children_and_chains(tree):
    for node in range(-1, len(tree)):
        below = tree.children(node)
        assert [int(tree.parent[one]) for one in below] == [node] * len(below)
    assert sum(len(tree.children(node)) for node in range(-1, len(tree))) == len(tree)
    longest = max(tree.depth.tolist(), default=0)
    if tree.is_chain:
        assert longest == len(tree)
    assert DraftTree(tree.tokens, range(-1, len(tree) - 1)).is_chain


@pytest.mark.parametrize(
    ("tokens", "parent"),
    [
        ([1, 2], [-1]),
        ([[1, 2]], [[-1, 0]]),
        ([1, 2], [-1, 1]),
        ([1, 2], [1, -1]),
        ([1], [-2]),
        ([1.5], [-1]),
        ([2**40], [-1]),
        (["one"], [-1]),
        ([True], [-1]),
        ([1, 2, 1], [-1, -1, -1]),
        ([3, 1, 2, 1], [-1, 0, 0, 0]),
    ],
)
def test_what_is_no_tree(tokens, parent):
    with pytest.raises(BatchError):
        DraftTree(tokens, parent)


def test_nobody_changes_a_tree():
    tokens = np.array([1, 2], np.int32)
    tree = DraftTree(tokens, [-1, 0])
    tokens[0] = 9
    assert tree.tokens.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        tree.tokens[0] = 5
    with pytest.raises(AttributeError):
        tree.parent = [0]
    assert tree != [1, 2]
    assert tree != DraftTree([1, 2], [-1, -1])
    assert repr(tree) == "DraftTree([1, 2], [-1, 0])"
