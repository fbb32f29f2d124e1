"""What the compiled loop of schedules is given is checked there, whoever gives it."""

import numpy as np
import pytest
from harness.block_runs import after_block
from harness.draft_runs import scheduled
from harness.head_runs import GREEDY, SAMPLINGS, clear, make_run, runners
from programs import N_LOGITS, head, post_head

from mtpcore._ext._draft import run
from mtpcore.backends.cpu import CpuBackend, backend
from mtpcore.backends.schedule import Text
from mtpcore.errors import BackendError, BatchError, CapacityError, MtpcoreError, SamplingError
from mtpcore.sampling import Sampler, Sampling, Scratch
from mtpcore.testing import Runner

REFUSED = (MtpcoreError, TypeError, ValueError, OverflowError, KeyError, AttributeError)


class Given:
    """The arguments of a schedule that runs."""

    def __init__(self, schedule):
        self.schedule, self.names = schedule, schedule.names
        self.stages = backend._by_buffers(schedule, [stage.plan for stage in schedule.stages])

    def run(self, *, stage=None, texts=None, drafts=None, bests=None, n_names=None, **fields):
        """Run it with some fields of a stage, or some arguments, in place of what they are."""
        stages = [{**one, **(fields if i == stage else {})} for i, one in enumerate(self.stages)]
        schedule = self.schedule
        return run(
            schedule.texts if texts is None else texts,
            schedule.drafts if drafts is None else drafts,
            schedule.bests if bests is None else bests,
            stages,
            len(self.names) if n_names is None else n_names,
            schedule.token_ids,
        )


def heads(threads=1):
    """Return three heads, and the schedule of drafts of two texts."""
    made = runners(CpuBackend(), threads)
    sequences = [(0, 4, [0, 2, 1], 3, 0.0, GREEDY), (1, 6, [3, 3, 3], 2, 0.0, SAMPLINGS[0])]
    one = make_run(made, sequences)
    return made, Given(scheduled(made[0].plan, one, made[0].memory))


def block():
    """Return a block with its post-head, and the schedule of drafts of two texts."""
    made = [Runner(CpuBackend(), *one, n_batch=16) for one in (head(), post_head())]
    one = after_block(*made, [(6, 3, 0.0, GREEDY), (5, 2, 0.0, GREEDY)], passes=2)
    return made, Given(scheduled(made[0].plan, one, made[0].memory))


def changed(entries, at, **fields):
    return [one._replace(**fields) if i == at else one for i, one in enumerate(entries)]


def wrong_stages(given):
    """Return fields of stage 1, none of which fit the others."""
    stage = given.stages[1]
    fills, picks, made, slots = (stage[name] for name in ("fills", "picks", "made", "slots"))
    n_rows, n_outputs = len(stage["batch"].tokens), len(stage["batch"].outputs)
    far = 1 << 40
    yield from ({"fills": changed(fills, 0, row=row)} for row in (-1, n_rows, far))
    yield from ({"fills": changed(fills, 0, draft=draft)} for draft in (-2, 99, far))
    yield from ({"fills": changed(fills, 0, stage=source)} for source in (1, 2, -3, far))
    yield {"fills": changed(fills, 0, stage=0, output=99)}
    yield {"fills": [*fills, fills[-1]]}
    yield {"fills": [(0, 0)]}
    yield {"is_given": True}
    yield from ({"picks": changed(picks, 0, output=at)} for at in (-1, n_outputs, far))
    yield from ({"picks": changed(picks, 0, draft=at)} for at in (-1, 99, far))
    yield from ({"n_logits": n} for n in (0, -1, N_LOGITS - 1, N_LOGITS + 1, far))
    yield from ({"logits": buffer} for buffer in (-1, 1000))
    yield from ({"made": [(*made[0][:2], width)]} for width in (far,))
    yield {"made": []}
    yield {"slots": []}
    yield from ({"slots": [(buffer, *slots[0][1:])]} for buffer in (-1, 1000, stage["logits"]))
    yield from ({"slots": [(slots[0][0], width, None)]} for width in (0, 1, far))
    yield {"slots": [(*slots[0][:2], np.zeros(1, np.float32))]}
    yield {"slots": [*slots] * 9}
    yield from ({"feeds": [feed]} for feed in ((9, 0, 0), (0, 9, 0), (0, 0, 1 << 20), (0, 0, -1)))
    yield {"feeds": [(0, 0, 0)] * 9}
    yield {"external": []}
    yield {"pages": []}
    yield {"executor": None}


@pytest.mark.parametrize("make", [heads, block])
def test_a_stage_that_does_not_fit_is_refused(make):
    made, given = make()
    tried = 0
    for fields in wrong_stages(given):
        with pytest.raises(REFUSED):
            given.run(stage=1, **fields)
        tried += 1
    assert tried > 30
    tokens, best_of, ran = given.run()
    assert min(tokens) >= 0
    assert best_of == [*range(len(tokens))]
    assert all(ran)
    clear(*made)


@pytest.mark.parametrize("make", [heads, block])
def test_drafts_of_no_text_are_refused(make):
    _, given = make()
    drafts = given.schedule.drafts
    for wrong in (
        changed(drafts, 0, text=2),
        changed(drafts, 0, text=-1),
        changed(drafts, 0, parent=0),
        changed(drafts, 1, parent=1 << 40),
        changed(drafts, 1, text=1),
        drafts[:1],
        [],
    ):
        with pytest.raises(REFUSED):
            given.run(drafts=wrong)
    for n_names in (0, 2, -1):
        with pytest.raises(REFUSED):
            given.run(n_names=n_names + (n_names == len(given.names)))


def test_bests_of_other_drafts_are_refused():
    _, given = heads()
    far = 1 << 40
    for wrong in (
        ([0], [0], False),
        ([0], [99], False),
        ([99], [0], False),
        ([-1], [0], True),
        ([0], [far], True),
        ([], [0], False),
        ([0], [], False),
        (0,),
    ):
        with pytest.raises(REFUSED):
            given.run(bests=[wrong])


def test_stages_of_other_threads_are_refused():
    _, given = heads(2)
    _, others = heads(1)
    with pytest.raises(BackendError, match="other threads"):
        given.run(stage=1, **others.stages[1])


@pytest.mark.parametrize("stages", [[], None, [None], [()], [{}], [object()]])
def test_impossible_stages_are_refused(stages):
    with pytest.raises(REFUSED):
        run([], [], [], stages, 0, None)


def test_texts_of_impossible_sizes_are_refused():
    """Their room in bytes is 2^64."""
    _, given = heads()
    one = Sampler(Sampling(), Scratch(N_LOGITS))
    text = Text(one, Long(), 0, 0)
    with pytest.raises((CapacityError, BatchError, SamplingError), match="no memory for a draft"):
        given.run(texts=[text] * (1 << 12))


class Long:
    """A history that says it is longer than any memory."""

    def __len__(self):
        return 1 << 50
