"""Drafters with a head for each step: what is kept where drafts end early."""

import numpy as np
import pytest
from harness.families import FAMILIES

from mtpcore.runtime.batch import Batch
from mtpcore.sampling import Sampling

PROMPT = [7, 3, 9, 12, 4, 8, 5, 5, 2]
WARM = Sampling(temperature=1.0, seed=3)
FAMILY = next(one for one in FAMILIES if one.spec.heads.order == "each-step")


def linked(**settings):
    cross = FAMILY.link(threads=1, **settings)
    for seq in range(settings.get("n_seq_max", 1)):
        cross.llm.process(Batch.of(PROMPT, seq=seq))
    return cross


def roles(cross):
    return [name for name in cross.contexts if name != "llm"]


def go_on(cross, drafts):
    cross.verify({0: drafts}, WARM)
    cross.accept(0)


def test_heads_that_nobody_reached_hold_no_more_than_before():
    """A floor that nothing passes ends the loop at once; later drafts are as ever."""
    cross, other = linked(), linked()
    for _ in range(2):
        assert cross.draft(0, 3, WARM, p_min=1.0) == []
        assert [cross.contexts[name].length(0) for name in roles(cross)][1:] == [0, 0]
    for _ in range(3):
        for one in (cross, other):
            go_on(one, [])
    wanted = other.draft(0, 3, WARM)
    assert cross.draft(0, 3, WARM) == wanted
    assert len(wanted) == 3
    for one in (cross, other):
        go_on(one, wanted)
    assert cross.digest(0) == other.digest(0)


def test_heads_reach_as_far_as_the_rows_they_read(caplog):
    """A row of the second head's that is not finite leaves the first one's draft."""
    cross, other = linked(n_seq_max=2), linked(n_seq_max=2)
    second = cross.links.inboxes(roles(cross)[1])
    slot, box = next(iter(second.items()))
    row = box.get(0, 4, 5)
    row[0, 1] = np.nan
    rest = box.get(0, 5, len(PROMPT))
    box.put(0, 4, row)
    box.put(0, 5, rest)
    drafts, wanted = (one.draft({0: 3, 1: 3}, sampling=WARM) for one in (cross, other))
    assert drafts == {0: wanted[0][:1], 1: wanted[1]}
    assert cross.paused == 1
    assert "not finite" in caplog.text
    assert slot in FAMILY.spec.feeds[0].slot


@pytest.mark.parametrize(("p_min", "paused"), [(0.0, 1), (1e-9, 0)])
def test_a_loop_that_ends_by_itself_is_counted(p_min, paused):
    """A floor ends drafts too, and is no reason to count."""
    cross = linked()
    plan = cross.contexts[roles(cross)[0]].runner.plan
    run = plan.run_schedule

    def end_early(schedule):
        drafted = run(schedule)
        return drafted._replace(tokens=[*drafted.tokens[:2], -1])

    plan.run_schedule = end_early
    assert len(cross.draft(0, 3, WARM, p_min=p_min)) == 2
    assert cross.paused == paused


def test_the_drafts_of_many_sequences_are_those_of_each_alone():
    """More of them than fit in one piece, and of any length."""
    alone = [linked().draft(0, k, WARM) for k in (3, 2, 1, 3, 3)]
    cross = linked(n_seq_max=5, n_batch=7)
    drafts = cross.draft(dict(enumerate([3, 2, 1, 3, 3])), sampling=WARM)
    assert drafts == dict(enumerate(alone))


@pytest.mark.parametrize("n_batch", [1, 2])
def test_heads_read_all_drafts_before_their_own_in_one_batch(n_batch):
    """However few rows of the text a batch has."""
    wanted = linked().draft(0, 3, WARM)
    assert len(wanted) == 3
    cross = FAMILY.link(threads=1, n_batch=n_batch)
    for i, token in enumerate(PROMPT):
        cross.llm.process(Batch.of([token], pos=i))
    assert cross.draft(0, 3, WARM) == wanted


def test_a_rollback_leaves_no_entry_in_any_head():
    """Not even one place more; the heads have read nothing since."""
    cross = linked()
    assert len(cross.digest(0)) > 2
    for n in (len(PROMPT) - 1, 4):
        cross.rollback(0, n)
        fresh = FAMILY.link(threads=1)
        fresh.llm.process(Batch.of(PROMPT[:n]))
        assert cross.digest(0) == fresh.digest(0)
