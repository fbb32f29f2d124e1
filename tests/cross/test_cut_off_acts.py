"""An exception at every line of every act: the state is what it was before, or what it is after."""

from contextlib import suppress

import numpy as np
import pytest
from harness.committed import check_pages, look
from harness.families import HYBRID
from harness.hashed import FUSED, HashBackend, HashModel
from harness.interrupted import Raiser, recovering
from harness.scripted import cross_of, plain

from mtpcore.declarations.draft_tree import DraftTree
from mtpcore.declarations.spec import TreeShape
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.sampling import Sampling

PROMPT, WARM = [3, 1, 4], Sampling(temperature=1.0, seed=8)
TRUTH = plain(PROMPT, WARM, 8)
TREE = DraftTree([5, TRUTH[1], 6, TRUTH[2]], [-1, -1, 1, 1])
STEPS = {"chain": 4, "tree": 4, "fusion": 3, "hybrid": 12}
"""Every which line of an act raises, by what it acts on; another one is the first in each act."""


def places_of(act, subject, first, step):
    """Act; return a place in every step-th line, of those that run often in turn another one."""
    with Raiser() as raiser:
        act(subject)
    lines = [*raiser.seen().values()][first % step :: step]
    return [places[i % len(places)] for i, places in enumerate(lines)]


def crossed(kind):
    """Two sequences, the first one after a round, and an empty one."""
    settings = {"tree": TreeShape(depth=3, width=2, n_nodes=6)} if kind == "tree" else {}
    if kind == "fusion":
        settings["model"] = HashModel(FUSED)
    if kind == "hybrid":
        cross = HYBRID.link(90, n_seq_max=3, n_batch=8, threads=1)
    else:
        cross, _ = cross_of("head", skill=12, n_seq_max=3, n_batch=8, **settings)
    cross.llm.process(Batch.of(PROMPT, seq=0))
    cross.llm.process(Batch.of([7, 2], seq=1))
    cross.pending(0, WARM)
    cross.verify({0: cross.draft(0, 2, WARM)}, WARM)
    cross.accept(0, 0)
    return cross


def verified(cross):
    cross.verify({0: cross.draft(0, 3, WARM), 1: [2]}, WARM)


def fed(cross):
    place = cross.links.inboxes("draft")["hidden"].length(0)
    rows = cross.links.inboxes("draft")["hidden"].get(0, place - 2, place)
    cross.feed("llm", "hidden", 0, place - 2, rows + 1)


ACTS = {
    "process": (None, lambda c: c.llm.process(Batch.of([9, 8], seq=0, pos=4, outputs="last"))),
    "draft": (None, lambda c: c.draft({0: 3, 1: 3}, sampling=WARM)),
    "verify": (None, lambda c: c.verify({0: [TRUTH[2], 5], 1: []}, WARM, prefill={2: [1, 2]})),
    "verify trees": (None, lambda c: c.verify({0: TREE, 1: [3]}, WARM, prefill={2: [1, 2]})),
    "accept": (verified, lambda c: c.accept(0)),
    "rollback": (verified, lambda c: c.rollback(0, 2)),
    "remove": (verified, lambda c: c.remove(0)),
    "fork": (None, lambda c: c.fork(0, 2, stream=3)),
    "digest": (None, lambda c: c.digest(0)),
    "feed": (None, fed),
}


def state(cross):
    """Everything that a Cross shows, and who holds which page."""
    held = [
        (group.pages.n_free, np.where(group.pages.bounds[1] > 0, group.pages.bounds, 0).tolist())
        for context in cross.contexts.values()
        for group in (context.runner.memory.groups if context.runner.memory else ())
    ]
    undecided = [one.undecided for one in cross.speculation.states]
    streams = [(one.stream, one.n_prompt, one.n_known) for one in cross.speculation.states]
    texts = [
        one.history[: one.n + (one.pending is not None)].tolist()
        for one in cross.speculation.states
    ]
    return [look(cross, seq) for seq in range(3)], held, undecided, streams, texts, cross.paused


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("name", ACTS)
def test_acts_of_a_cross_happen_or_not(name, kind):
    if (name, kind) == ("feed", "fusion"):
        pytest.skip("nothing reads the tap alone")
    prepare, act = ACTS[name]

    def make():
        cross = crossed(kind)
        if prepare:
            prepare(cross)
        return cross

    one = make()
    before = state(one)
    places = places_of(act, one, list(ACTS).index(name), STEPS[kind])
    after, n_raised = state(one), 0
    for place in places:
        cross, raiser = make(), Raiser(place, place % 31)
        with recovering(raiser), suppress(KeyboardInterrupt), raiser:
            act(cross)
        n_raised += bool(raiser.raised)
        cross.journal.settle()
        now = state(cross)
        assert now in (before, after), raiser.raised
        for context in cross.contexts.values():
            check_pages(context)
        if now == before:
            act(cross)
            assert state(cross) == after, raiser.raised
    assert n_raised > 0.9 * len(places)


def bare(kind):
    if kind == "hybrid":
        context = HYBRID.context(200, n_seq_max=3, n_batch=16, threads=1)
    else:
        context = Context(HashModel(), 200, n_seq_max=3, n_batch=16, backend=HashBackend())
    context.process(Batch.of([1, 2, 3] * 30, seq=0))
    context.process(Batch.of(PROMPT, seq=1))
    return context


def grown(context):
    tree = Batch([1, 2, 3, 4], seq=1, pos=[3, 4, 4, 5], parent=[-1, 0, 0, 2])
    context.process(tree)


BARE = {
    "process": (None, lambda c: c.process(Batch.of([5] * 40, seq=1, pos=3))),
    "explore": (None, lambda c: c.explore(Batch.of([5] * 10, seq=1, pos=3))),
    "rewind": (None, lambda c: c.rewind(0, 20 if c.runner.memory.nearest(0, 20) == 20 else 80)),
    "remove": (None, lambda c: c.remove(0)),
    "fork": (None, lambda c: c.fork(0, 2)),
    "keep": (grown, lambda c: c.keep(1, [0, 2, 3])),
}
BARE_STEPS = {"hashed": 2, "hybrid": 4}


def held_by(context):
    digests = [context.digest(seq) for seq in range(3)]
    return (
        digests,
        context.runner.lengths[:],
        dict(context.runner.sequences.undecided),
        [group.pages.n_free for group in context.runner.memory.groups],
    )


@pytest.mark.parametrize("kind", BARE_STEPS)
@pytest.mark.parametrize("name", BARE)
def test_acts_of_a_context_happen_or_not(name, kind):
    prepare, act = BARE[name]

    def make():
        context = bare(kind)
        if prepare:
            prepare(context)
        return context

    one = make()
    before = held_by(one)
    places = places_of(act, one, 0, BARE_STEPS[kind])
    after, n_raised = held_by(one), 0
    for place in places:
        context, raiser = make(), Raiser(place, place % 23)
        with recovering(raiser), suppress(KeyboardInterrupt), raiser:
            act(context)
        n_raised += bool(raiser.raised)
        context.length(0)
        now = held_by(context)
        check_pages(context)
        assert now in (before, after), raiser.raised
        if now == before:
            act(context)
            assert held_by(context) == after
    assert n_raised > 0.9 * len(places)
