"""Rounds that declarations build for themselves: what no field says, and what does not fit."""

import numpy as np
import pytest
from harness.kinds import BUILDERS, CHAIN, KINDS, linked, write_files
from msgspec.structs import replace

import mtpcore
from mtpcore import Batch, BatchError, CapacityError, DraftTree, Sampling, TreeShape
from mtpcore.plugin import (
    DraftToken,
    Feed,
    Fill,
    Pick,
    Round,
    Stage,
    draft_levels,
)

PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("own")
    write_files(made)
    return made


def drafted(spec, folder, k=3, **options):
    cross = linked(spec, folder, **options)
    cross.llm.process(Batch.of(PROMPT))
    return cross.draft(0, k)


def again(inputs):
    """Draft token by token; each step reads the target's newest row again."""
    stages = [
        Stage(rows="chain", fills=[Fill(0, step - 1, ahead=step)], picks=[Pick(0, step)])
        for step in range(1, inputs.wanted[0])
    ]
    drafts = [DraftToken(0, step) for step in range(-1, len(stages))]
    return Round(stages=[Stage(picks=[Pick(0, 0)]), *stages], drafts=drafts)


def test_the_target_s_rows_again_in_later_steps(folder):
    """No field says so; the drafts are those of steps that were given the rows by hand."""
    feeds = (Feed(slot="hidden"),)
    spec = replace(CHAIN, feeds=feeds, schedule=again)
    made = drafted(spec, folder)
    assert len(made) == 3
    cross = linked(replace(spec, schedule=None, limit=1), folder)
    cross.llm.process(Batch.of(PROMPT))
    head = cross.contexts["draft"]
    text, wanted = [*PROMPT, cross.pending(0, Sampling.greedy())], []
    for _ in range(3):
        entries = [*range(1, len(PROMPT) + 1)]
        rows = head.runner.sources["hidden"](np.zeros(3, np.int32), np.array(entries, np.int32))
        steps = len(text) - 1 - len(PROMPT)
        hidden = np.concatenate([rows, np.repeat(rows[-1:], steps, axis=0)])
        batch = Batch(text[1:], seq=0, pos=1, slots={"hidden": hidden}, outputs="last")
        wanted.append(int(head.explore(batch).logits[-1].argmax()))
        text.append(wanted[-1])
    assert made == wanted


@pytest.mark.parametrize("kind", ["chain", "heads", "tree", "block"])
def test_the_core_s_builders_are_what_shapes_are(kind, folder):
    spec = replace(KINDS[kind], schedule=BUILDERS.get(kind, draft_levels))
    assert drafted(spec, folder) == drafted(KINDS[kind], folder)


def test_a_tree_that_a_user_asks_for_reaches_the_builder(folder):
    seen = []

    def build(inputs):
        seen.append(inputs.tree)
        return draft_levels(inputs)

    spec, shape = replace(CHAIN, schedule=build), TreeShape(depth=2, width=2, n_nodes=4)
    assert isinstance(drafted(spec, folder), list)
    assert isinstance(drafted(spec, folder, tree=shape), DraftTree)
    assert seen == [None, shape]


def wrong(**changes):
    """Return a builder of chains, one of whose stages is not sound."""

    def build(inputs):
        made = draft_levels(inputs)
        return replace(made, stages=[*made.stages[:-1], replace(made.stages[-1], **changes)])

    return build


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"fills": [Fill(0, 7, ahead=2)]}, "a draft before it is chosen"),
        ({"fills": [Fill(3, 0)]}, "no such output"),
        ({"fills": [Fill(-1, 0)]}, "no such output"),
        ({"graph": 1}, "a stage of no pass"),
        ({"picks": [Pick(2, 2)]}, "no such output"),
        ({"picks": []}, "a draft that nothing chooses"),
        ({"feeds": {"nothing": ("hidden",)}}, "slots that the graph does not have"),
        ({"repeats": 1}, "a row before it is made"),
        ({"fills": [Fill(0, 1)]}, "a round writes after the rows that it begins with"),
        ({"fills": [Fill(0, 1, ahead=-3)]}, "a round writes after the rows that it begins with"),
        ({"fills": [Fill(0, 1, ahead=90)]}, "longer than the context"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_and_nothing_is_left_of_it(changes, what, folder):
    cross = linked(replace(CHAIN, schedule=wrong(**changes)), folder)
    cross.llm.process(Batch.of(PROMPT))
    before = cross.digest(0)
    with pytest.raises((BatchError, CapacityError), match=what):
        cross.draft(0, 3)
    assert cross.digest(0) == before
    cross.verify({0: [1, 2]})
    cross.accept(0)
    assert len(cross.tokens(0)) > len(PROMPT)


def test_a_proposer_has_no_rounds():
    with pytest.raises(mtpcore.PluginError, match="a proposer has no graph"):
        mtpcore.declarations.checks.check_spec(replace(KINDS["proposer"], schedule=draft_levels))
