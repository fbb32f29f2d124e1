"""Rounds of trees, against the words of the paper, and fixed trees against their paths."""

import math
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st
from programs import N_LOGITS, WIDTH, head

from mtpcore import TreeShape
from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.draft import run_schedule
from mtpcore.backends.schedule import Pass, Schedule, Text
from mtpcore.drafting.rounds import RoundInput, drafts_of, find_missing
from mtpcore.drafting.stages import draft_levels
from mtpcore.sampling import Sampler, Sampling, Scratch

PROGRAM, _ = head()
SAMPLER = Sampler(Sampling(temperature=0), Scratch(N_LOGITS))
HISTORY = np.array([3], np.int32)


def logits_after(path, seed):
    """Return some logits after a path of tokens, a few of them large."""
    rng = np.random.default_rng([seed, *path])
    return np.log(rng.dirichlet(np.full(N_LOGITS, 0.15)) + 1e-9).astype(np.float32)


def ranking(path, seed, n):
    """Return (token, share) of the best n after a path."""
    ids, _, shares = SAMPLER.rank(logits_after(path, seed), HISTORY, 1, 1 + len(path), n)
    return dict(zip(ids.tolist(), shares.tolist(), strict=True))


class Paths:
    """A plan whose recycled row names the path that led there, and whose logits depend on it.

    ``broken`` are paths whose rows are not finite; ``runs`` the paths that chose, run by run.
    """

    program = PROGRAM

    def __init__(self, seed, broken=()):
        self.seed, self.broken, self.runs, self.paths = seed, broken, [], [()]

    def run(self, batch, memory):
        made = []
        for row, token in enumerate(batch.tokens.tolist()):
            above = self.paths[int(batch.slots["hidden"][row, 0])]
            path = (*above, token) if batch.positions[row, 0] > 0 else ()
            if batch.parent is not None and batch.parent[row] >= 0:
                assert made[batch.parent[row]] == path[:-1]
            made.append(path)
        hidden = np.zeros((len(made), WIDTH), np.float32)
        for row, path in enumerate(made):
            self.paths.append(path)
            hidden[row] = np.nan if path in self.broken else len(self.paths) - 1
        self.runs.append([made[row] for row in batch.outputs])
        logits = [logits_after(path, self.seed) for path in self.runs[-1]]
        return {"logits": np.array(logits), "hidden": hidden}


def grow(shape, seed, *, depth=9, room=999, broken=(), p_min=0.0, memory=None, n_tokens=None):
    """Return the paths of a tree, which paths were run, and whether drafts are missing."""
    plan = Paths(seed, broken)
    first = CheckedBatch(
        tokens=HISTORY,
        positions=np.zeros((1, 1), np.int32),
        seq=np.zeros(1, np.int32),
        place=np.zeros(1, np.int32),
        outputs=np.zeros(1, np.int32),
        slots={"hidden": np.zeros((1, WIDTH), np.float32)},
    )
    program = PROGRAM if memory else msgspec.structs.replace(PROGRAM, memory=())
    inputs = RoundInput(
        wanted=[depth],
        room=[room],
        programs=[program],
        feeds={"hidden": ("hidden",)},
        tree=shape,
    )
    schedule = Schedule(
        round=draft_levels(inputs),
        passes=[Pass(plan=plan, memory=memory, batch=first)],
        texts=[Text(SAMPLER, HISTORY, 1, 1, p_min)],
    )
    if n_tokens is not None:
        schedule.__dict__["n_tokens"] = n_tokens  # where it is cached
    drafted = run_schedule(schedule)
    (tree,) = drafts_of(schedule, drafted)
    return tree, plan.runs[1:], bool(find_missing(schedule, drafted))


def paths(tree):
    found = []
    for token, above in zip(tree.tokens.tolist(), tree.parent.tolist(), strict=True):
        found.append((*(found[above] if above >= 0 else ()), token))
    return found


@searching(100)
@given(
    st.builds(
        TreeShape, depth=st.integers(1, 5), width=st.integers(1, 4), n_nodes=st.integers(1, 20)
    ),
    st.integers(0, 999),
    st.sampled_from([None, object()]),
)
def test_a_grown_tree_is_that_of_the_paper(shape, seed, memory):
    """The width best children of the width best nodes of each level; of all the n_nodes best."""

    def worth(path):
        parts = [ranking(path[:i], seed, shape.width) for i in range(len(path))]
        return math.prod(part[token] for part, token in zip(parts, path, strict=True))

    beam, pool, beams = [()], [], []
    for _ in range(shape.depth):
        children = [(*path, token) for path in beam for token in ranking(path, seed, shape.width)]
        pool += children
        beam = sorted(children, key=worth, reverse=True)[: shape.width]
        beams.append(beam)
    wanted = sorted(pool, key=worth, reverse=True)[: shape.n_nodes]
    tree, runs, is_short = grow(shape, seed, memory=memory)
    assert runs == beams[:-1]
    assert paths(tree) == wanted
    assert not is_short
    firsts = {path[:-1]: path for path in reversed(paths(tree))}
    for path in paths(tree):  # whoever has children has the first one
        assert firsts[path[:-1]][-1] == next(iter(ranking(path[:-1], seed, 1)))
    assert all(worth(a) >= worth(b) for a, b in pairwise(paths(tree)))


@pytest.mark.parametrize("memory", [None, object()])
def test_a_fixed_tree_is_its_paths(memory):
    shape = TreeShape(paths=((0,), (2, 1), (0, 0), (0, 0, 3)))
    assert (shape.n_levels, shape.n_branches) == (3, 3)
    starts = [(0,), (2,), (2, 1), (0, 0), (0, 0, 3)]

    def tokens(ranks):
        path = ()
        for rank in ranks:
            path = (*path, [*ranking(path, 5, 4)][rank])
        return path

    tree, runs, is_short = grow(shape, 5, memory=memory)
    assert paths(tree) == [tokens(ranks) for ranks in starts]
    assert [set(level) for level in runs] == [{tokens((0,)), tokens((2,))}, {tokens((0, 0))}]
    assert not is_short
    short, *_ = grow(shape, 5, depth=2, memory=memory)
    assert paths(short) == [tokens(ranks) for ranks in starts[:4]]


@pytest.mark.parametrize("memory", [None, object()])
def test_what_keeps_nodes_from_being_run(memory):
    """A row that is not finite, a token without an embedding, no room, a floor of probability."""
    shape = TreeShape(depth=3, width=3, n_nodes=99)
    whole, runs, _ = grow(shape, 3, memory=memory)
    best = runs[0][0]
    tree, _, is_short = grow(shape, 3, broken={()}, memory=memory)
    assert (tree.depth.max(), is_short) == (1, True)
    tree, _, is_short = grow(shape, 3, broken={best}, memory=memory)
    assert is_short
    assert set(paths(tree)) >= {p for p in paths(whole) if len(p) == 2 and p[:1] == best}
    assert not {p for p in paths(tree) if len(p) == 3 and p[:1] == best}
    least = sorted(path[0] for path in runs[0])[0] + 1
    tree, runs, _ = grow(shape, 3, n_tokens=least, memory=memory)
    assert runs
    assert all(max(path) < least for level in runs for path in level)
    assert max(tree.tokens) >= least
    _, runs, _ = grow(shape, 3, room=2, memory=memory)
    assert [len(level) for level in runs] == ([2] if memory else [2, 2])
    tree, _, is_short = grow(shape, 3, p_min=0.2, memory=memory)
    for path in paths(tree):
        logits = logits_after(path[:-1], 3).astype(float)
        assert np.exp(logits[path[-1]]) / np.exp(logits).sum() >= 0.2 - 1e-6
    assert 0 < len(tree) < len(whole)


@pytest.mark.parametrize(("shape", "depth"), [(TreeShape(depth=4, width=1, n_nodes=2), 4)])
def test_how_deep_a_tree_goes(shape, depth):
    assert shape.n_levels == depth
    tree, runs, _ = grow(shape, 1)
    assert tree.is_chain
    assert len(tree) == 2
    assert len(runs) == 3
