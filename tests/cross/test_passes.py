"""How often graphs run in a round: what was accepted is caught up with in the next draft's rows."""

import msgspec
import pytest
from harness.families import FAMILIES

from mtpcore.batch import Batch
from mtpcore.spec import Tree

TREE = Tree(depth=3, width=2, n_nodes=6)


class Counted:
    """A plan that notes how many rows its runs and draft loops began with."""

    def __init__(self, plan):
        self.plan, self.runs, self.loops = plan, [], []

    def __getattr__(self, name):
        return getattr(self.plan, name)

    def run(self, rows, memory):
        self.runs.append(len(rows.tokens))
        return self.plan.run(rows, memory)

    def draft(self, run, memory):
        self.loops.append(len(run.rows.tokens))
        return self.plan.draft(run, memory)

    def take(self):
        found = self.runs, self.loops
        self.runs, self.loops = [], []
        return found


def rounds(cross, n_rounds, k=3):
    """After a prompt and a first round, yield (accepted before, passes by role) of each round."""
    cross.llm.process(Batch.of([7, 3, 9, 12, 4, 8]))
    plans = {}
    for name, context in cross.contexts.items():
        plans[name] = context.plan = Counted(context.plan)
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
        assert passes["draft"] == ([], [accepted + 1])
        caught_up.add(accepted)
        further = {name: runs for name, (runs, _) in passes.items() if name not in ("llm", "draft")}
        assert all(runs == [accepted + 1] for runs in further.values())
    assert len(caught_up) > 1, "always as many drafts accepted: the count says little"


@of_shape("chain")
def test_a_tree_is_a_pass_a_level(family):
    shaped = msgspec.structs.replace(family.spec, shape="tree", tree=TREE)
    for accepted, n_drafts, passes in rounds(family.link(drafter=shaped, threads=1), 6):
        assert passes["llm"] == ([1 + n_drafts], [])
        runs, loops = passes["draft"]
        assert not loops
        assert runs[0] == accepted + 1
        assert len(runs) <= TREE.depth


@of_shape("chain", order="each-step")
def test_heads_of_their_own_steps_run_once_each(family):
    for accepted, n_drafts, passes in rounds(family.link(threads=1), 12):
        assert passes["llm"] == ([1 + n_drafts], [])
        heads = [runs for name, (runs, _) in passes.items() if name != "llm"]
        assert [len(runs) for runs in heads] == [1] * n_drafts + [0] * (len(heads) - n_drafts)
        assert heads[0][0] == accepted + 2  # the pending token before is no accepted entry yet
