"""Drafts of a block and its post-head: what does not fit is refused, and backends agree."""

from functools import partial

import msgspec
import pytest
from harness.block_runs import after_block
from harness.draft_runs import run_drafts
from harness.head_runs import GREEDY, SAMPLINGS, clear
from programs import head, post_head

from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.errors import BatchError
from mtpcore.testing import Runner


@pytest.fixture(scope="module")
def runners():
    """Return a block and what is after it, of the definition and compiled."""
    return [
        [Runner(backend, *made, n_batch=16) for made in (head(), post_head())]
        for backend in (ReferenceBackend(), CpuBackend())
    ]


@pytest.mark.parametrize("p_min", [0.0, 0.08])
@pytest.mark.parametrize(("passes", "n_before"), [(0, 0), (1, 0), (3, 1)])
@pytest.mark.parametrize("sampling", [GREEDY, *SAMPLINGS[:2]], ids=range(3))
def test_drafts_are_those_of_the_definition(runners, sampling, passes, n_before, p_min):
    """Of sequences with different numbers of drafts, none among them."""
    sequences = [(3, 4, p_min, sampling), (2, 0, 0.0, sampling), (4, 3, 0.0, sampling)]
    found = []
    for one, after in runners:
        run = after_block(one, after, sequences, passes=passes, n_before=n_before)
        found.append(run_drafts(one.plan, run, one.memory))
        clear(one, after)
    assert found[0] == found[1]
    assert len(found[0][0][2]) == 3


def changed(run, **fields):
    return msgspec.structs.replace(run, post_head=msgspec.structs.replace(run.post_head, **fields))


WRONG = {
    "no feed": (partial(changed, feeds={"base": ("logits",)}), "a slot that nothing feeds"),
    "another width": (partial(changed, feeds={"row": ("hidden",), "base": ("logits",)}), "of its"),
    "no such output": (partial(changed, feeds={"row": ("gone",), "base": ("logits",)}), "of its"),
    "no such slot": (
        partial(
            changed,
            feeds={s: ("logits", "hidden") for s in ("row", "other")} | {"base": ("logits",)},
        ),
        "slots that the graph does not have",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_is_refused(runners, wrong):
    change, what = WRONG[wrong]
    for one, after in runners:
        run = after_block(one, after, [(3, 3, 0.0, GREEDY), (2, 2, 0.0, GREEDY)])
        with pytest.raises(BatchError, match=what):
            run_drafts(one.plan, change(run), one.memory)
        clear(one, after)
