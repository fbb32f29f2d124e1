"""What the compiled loop of schedules is given is checked there, whoever gives it."""

import msgspec
import numpy as np
import pytest
from harness.block_runs import after_block
from harness.draft_runs import scheduled
from harness.head_runs import GREEDY, SAMPLINGS, clear, make_run, runners
from programs import N_LOGITS, head, post_head

from mtpcore._ext._draft import run
from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.schedule import Pass, Text
from mtpcore.errors import BackendError, CapacityError, MtpcoreError
from mtpcore.sampling import Sampler, Sampling, Scratch
from mtpcore.testing import Runner

REFUSED = (MtpcoreError, TypeError, ValueError, OverflowError, KeyError, AttributeError)


class Given:
    """A schedule that runs."""

    def __init__(self, schedule):
        self.schedule = schedule

    def run(self, *, stage=None, binding=None, batch=None, **fields):
        """Run it with some fields of its round, or of a stage, as given.

        Of a stage also with a batch of its pass, and what its plan is bound to.
        """
        built, passes = self.schedule.round, [*self.schedule.passes]
        if stage is not None:
            stages, graph = [*built.stages], built.stages[stage].graph
            stages[stage] = msgspec.structs.replace(stages[stage], **fields)
            plan = Bound(passes[graph].plan, binding or {})
            passes[graph] = msgspec.structs.replace(
                passes[graph], plan=plan, batch=batch or passes[graph].batch
            )
            fields = {"stages": stages}
        built = msgspec.structs.replace(built, **fields)
        return run(msgspec.structs.replace(self.schedule, round=built, passes=passes))


class Bound:
    """A plan that says it is bound to something else."""

    def __init__(self, plan, binding):
        self.plan, self.binding, self.program = plan, binding, plan.program

    def bind(self, *of):
        return self.plan.bind(*of)._replace(**self.binding)


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
    """Return fields of stage 1 and of what its plan is bound to, none of which fit the others."""
    stage, one = given.schedule.round.stages[1], given.schedule.passes[1]
    fills, picks, feeds, batch = stage.fills, stage.picks, stage.feeds, one.batch
    bound = one.plan.bind(one.memory, 16, 16, True)
    n_outputs = len(batch.outputs)
    far, (slot, names) = 1 << 40, next(iter(feeds.items()))
    yield from ({"fills": changed(fills, 0, output=at)} for at in (-1, n_outputs, far))
    yield from ({"fills": changed(fills, 0, ahead=ahead)} for ahead in (far, -far))
    yield from ({"graph": graph} for graph in (-1, 99, far))
    yield {"rows": "other"}
    yield from ({"fills": changed(fills, 0, draft=draft)} for draft in (-2, 99, far))
    yield from ({"fills": changed(fills, 0, stage=source)} for source in (1, 2, -3, far))
    yield from ({"fills": changed(fills, 0, stage=0, source=at)} for at in (99, -1, far))
    yield {"fills": [*fills, fills[-1]]}
    yield {"fills": [(0, 0)]}
    yield {"fills": fills[:-1], "batch": msgspec.structs.replace(batch, slots={})}
    yield from ({"picks": changed(picks, 0, output=at)} for at in (-1, n_outputs, far))
    yield from ({"picks": changed(picks, 0, draft=at)} for at in (-1, 99, far))
    yield from ({"picks": changed(picks, 0, rank=rank)} for rank in (-2, far))
    yield from ({"feeds": {**feeds, slot: of}} for of in ((), ("nothing",), (*names, *names)))
    yield {"feeds": {**feeds, "nothing": names}}
    for name, values in {"seq": batch.seq[:-1], "tokens": batch.tokens[:-1]}.items():
        yield {"batch": msgspec.structs.replace(batch, **{name: values})}
    short = {slot: np.zeros(1, np.float32) for slot in batch.slots or feeds}
    yield {"batch": msgspec.structs.replace(batch, slots=short)}
    for buffers in ({}, dict.fromkeys(bound.slots, 1000), dict.fromkeys(bound.slots, -1)):
        yield {"binding": {"slots": buffers}}
    yield {"binding": {"slots": dict.fromkeys(bound.slots, bound.logits)}}
    yield {"binding": {"rows": {}}}
    yield {"binding": {"rows": short}}
    yield from ({"binding": {"n_logits": n}} for n in (0, -1, N_LOGITS - 1, N_LOGITS + 1, far))
    yield from ({"binding": {"logits": buffer}} for buffer in (-1, 1000))
    yield {"binding": {"outputs": []}}
    yield {"binding": {"pages": []}}
    yield {"binding": {"executor": None}}


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
    drafts = given.schedule.round.drafts
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


def test_what_feeds_slots_has_a_buffer():
    _, given = heads()
    one = given.schedule.passes[0]
    made = one.plan.bind(one.memory, 16, 16, True).made
    for buffer in (-1, 1000):
        with pytest.raises(REFUSED):
            given.run(stage=0, binding={"made": dict.fromkeys(made, buffer)})


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
    other = others.schedule.passes[1]
    executor = other.plan.bind(other.memory, 16, 16, True).executor
    with pytest.raises(BackendError, match="other threads"):
        given.run(stage=1, binding={"executor": executor})


@pytest.mark.parametrize("stages", [[], None, [None], [()], [{}], [object()]])
def test_impossible_stages_are_refused(stages):
    _, given = heads()
    with pytest.raises(REFUSED):
        given.run(stages=stages, drafts=[])


def test_plans_that_are_not_compiled_are_refused():
    _, given = heads()
    wrong = Pass(plan=object(), memory=None, batch=given.schedule.passes[0].batch)
    for passes in ([], None, [None], [wrong] * 3, given.schedule.passes[:1]):
        with pytest.raises(REFUSED):
            run(msgspec.structs.replace(given.schedule, passes=passes))


def test_texts_of_impossible_sizes_are_refused():
    """Their room in bytes is 2^64."""
    _, given = heads()
    one = Sampler(Sampling(), Scratch(N_LOGITS))
    text = Text(one, Long(), 0, 0)
    with pytest.raises(CapacityError, match="no memory for a draft"):
        run(msgspec.structs.replace(given.schedule, texts=[text] * (1 << 12)))


class Long:
    """A history that says it is longer than any memory."""

    def __len__(self):
        return 1 << 50
