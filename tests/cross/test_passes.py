"""How often graphs run in a round: what was accepted is caught up with in the next draft's rows."""

import msgspec
import pytest
from harness.families import FAMILIES

from mtpcore.declarations.spec import TreeShape
from mtpcore.runtime.batch import Batch

TREE = TreeShape(depth=3, width=2, n_nodes=6)


class Counted:
    """Notes how many rows a plan's runs, and the passes of its draft loops, began with."""

    def __init__(self, plan):
        self.runs, self.loops = [], []
        self._run, self._run_schedule = plan.run, plan.run_schedule
        plan.run, plan.run_schedule = self.run, self.run_schedule

    def run(self, rows, memory):
        self.runs.append(len(rows.tokens))
        return self._run(rows, memory)

    def run_schedule(self, schedule):
        self.loops.append([len(rows.batch.tokens) for rows in schedule.rows])
        return self._run_schedule(schedule)

    def take(self):
        found = self.runs, self.loops
        self.runs, self.loops = [], []
        return found


def rounds(cross, n_rounds, k=3):
    """After a prompt and a first round, yield (accepted before, passes by role) of each round."""
    cross.llm.process(Batch.of([7, 3, 9, 12, 4, 8]))
    plans = {name: Counted(context.runner.plan) for name, context in cross.contexts.items()}
    accepted = None
    for _ in range(n_rounds + 1):
        for plan in plans.values():
            plan.take()
        drafts = cross.draft(0, k)
        verdict = cross.verify({0: drafts})[0]
        cross.accept(0)
        if accepted is not None and len(drafts):
            yield accepted, len(drafts), {name: plan.take() for name, plan in plans.items()}
        accepted = verdict.accepted


def of_shape(*shapes, order="repeated"):
    chosen = [one for one in FAMILIES if one.spec.shape in shapes and one.spec.heads.order == order]
    assert chosen
    return pytest.mark.parametrize("family", chosen, ids=str)


@of_shape("chain")
def test_a_chain_is_one_loop_whose_first_rows_are_those_accepted(family):
    caught_up = set()
    for accepted, n_drafts, passes in rounds(family.link(threads=1), 12):
        assert passes["llm"] == ([1 + n_drafts], [])
        assert passes["draft"] == ([], [[accepted + 1, 1, 1]])
        caught_up.add(accepted)
        further = {name: runs for name, (runs, _) in passes.items() if name not in ("llm", "draft")}
        assert all(runs == [accepted + 1] for runs in further.values())
    assert len(caught_up) > 1, "always as many drafts accepted: the count says little"


@of_shape("chain")
def test_a_tree_is_a_pass_a_level(family):
    shaped = msgspec.structs.replace(family.spec, shape="tree", tree=TREE)
    for accepted, n_drafts, passes in rounds(family.link(drafter=shaped, threads=1), 6):
        assert passes["llm"] == ([1 + n_drafts], [])
        # Room for the branches of all levels so far: rows that nothing comes after are left out.
        assert passes["draft"] == ([], [[accepted + 1, TREE.width, 2 * TREE.width]])


@of_shape("chain", order="each-step")
def test_heads_of_their_own_steps_are_one_loop(family):
    """Head h reads what was accepted, the pending token and the h drafts before its own."""
    for accepted, n_drafts, passes in rounds(family.link(threads=1), 12):
        assert passes.pop("llm") == ([1 + n_drafts], [])
        # The pending token of the round before is no accepted entry yet.
        assert passes.pop("draft") == ([], [[accepted + 2 + head for head in range(n_drafts)]])
        assert set(map(str, passes.values())) == {"([], [])"}


@of_shape("chain")
def test_forks_share_what_a_drafter_makes_of_their_text(family):
    """It reads the text once, whoever drafts first."""
    cross = family.link(threads=1, n_seq_max=3)
    prompt = [7, 3, 9, 12, 4, 8]
    cross.llm.process(Batch.of(prompt))
    plans = {name: Counted(context.runner.plan) for name, context in cross.contexts.items()}
    for new in (1, 2):
        cross.fork(0, new)
    cross.draft({0: 2, 1: 2, 2: 2})
    for name in plans.keys() - {"llm"}:
        runs, loops = plans[name].take()
        n_rows = sum(runs) + sum(first for first, *_ in loops)
        assert n_rows <= len(prompt) + 3  # and each fork's pending token
