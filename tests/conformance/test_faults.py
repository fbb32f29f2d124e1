"""What the kit is for: faults of a graph, of its lowering and of the loop that no text shows."""

import msgspec
import numpy as np
import pytest
import toy
from msgspec.structs import replace

from mtpcore.backends.cpu import CpuPlan
from mtpcore.backends.cpu.lower import Lowering
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.discovery.registry import Registry
from mtpcore.drafting import base
from mtpcore.errors import BackendError
from mtpcore.plugin import Feed, Outputs, TreeShape
from mtpcore.testing import Subject, Texts, check_drafts, check_graphs, check_texts

WIDTH, EPS = toy.WIDTH, toy.EPS


def echo(g, inputs, h):
    """Join a value with a slice of all of it, and read it again."""
    token = g.rms_norm(g.embed(inputs.tokens, "blk.{n}.embed.weight"), None, EPS)
    x = g.matmul(g.concat(token, g.slice(token, 0, WIDTH)), "blk.{n}.join.weight")
    x = g.add(g.add(x, token), inputs["hidden"])
    x = g.rms_norm(x, "blk.{n}.norm.weight", EPS)
    return Outputs(logits=g.matmul(g.output_rows(x), "blk.{n}.head.weight"), hidden=x, token=token)


def swapped(g, inputs, h):
    """Build the toy's head with its parts in the wrong order."""
    token = g.embed(inputs.tokens, "blk.{n}.embed.weight")
    x = g.matmul(g.concat(inputs["hidden"], token), "blk.{n}.join.weight")
    x = g.rms_norm(x, "blk.{n}.norm.weight", EPS)
    return Outputs(logits=g.matmul(g.output_rows(x), "blk.{n}.head.weight"), hidden=x)


def forgetful(g, inputs, h):
    """Build the toy's head so that each step reads the row that the one before it read."""
    made = toy.head(g, inputs, h)
    return Outputs(logits=made.logits, hidden=inputs["hidden"])


GROWN = TreeShape(depth=3, width=3, n_nodes=8)
FIXED = TreeShape(paths=((0, 0, 0), (0, 2), (1,), (3, 0)))
TENSORS = toy.trunk_tensors() | toy.head_tensors()


@pytest.fixture
def subject(tmp_path):
    """Make the toy with its head, or with one that differs in some fields."""

    def make(**changes):
        plugins = Registry.of(toy, toy.offering(toy.replaced(name="other", **changes)))
        path = toy.write(tmp_path / "toy.gguf", TENSORS, heads=1)
        return Subject("toy", str(path), drafter="other", plugins=plugins)

    return make


def scores(tokens, rows, drafts):
    """Compute the toy's head in NumPy."""
    row, found = rows["hidden"][-1], []
    for token in [tokens[-1], *drafts[:-1]]:
        x = np.concatenate([TENSORS["token_embd.weight"][token], row])
        x = TENSORS[f"blk.{toy.N_LAYERS}.join.weight"] @ x
        row = x / np.sqrt(np.mean(x**2) + EPS)
        found.append(TENSORS["output.weight"] @ row)
    return found


def test_a_sound_plugin_passes(subject):
    assert check_graphs(subject(build=echo)) > 500
    assert check_drafts(subject(build=echo)) == 24 * 3 * 2
    assert check_drafts(subject(), scores) == 24 * 3 * 2
    assert check_graphs(computed_by(subject(), ReferenceBackend()), bound=1e-4) > 500


# Faults of the lowering


def moved(self, node):
    """Let what makes a part write it into the concat, whoever else reads it."""
    lower_concat(self, node)
    out = self._views[node.outputs[0]]
    for copy in [step for step in self.steps if step.kind == "copy"]:
        if copy.outputs[0].buffer == out.buffer:
            for i, step in enumerate(self.steps):
                if step.outputs == copy.inputs:
                    self.steps.remove(copy)
                    self.steps[i] = msgspec.structs.replace(
                        step, outputs=copy.outputs, writes=set()
                    )


def without_the_last_part_in(program):
    """Leave it out in the programs of this name."""

    def lower(self, node):
        lower_concat(self, node)
        if self.program.name == program and self.steps[-1].kind == "copy":
            self.steps.pop()

    return lower


lower_concat = Lowering._lower_concat


def test_a_part_that_is_made_elsewhere_is_an_error_of_the_plan(subject, monkeypatch):
    """As the planner did once; now nothing is run."""
    monkeypatch.setattr(Lowering, "_lower_concat", moved)
    with pytest.raises(BackendError, match="what no step makes"):
        check_graphs(subject(build=echo))


def test_a_part_that_is_left_out_is_found_and_no_text_shows_it(subject, monkeypatch):
    monkeypatch.setattr(Lowering, "_lower_concat", without_the_last_part_in("other"))
    check_texts(subject(build=echo), Texts(n_texts=1))
    with pytest.raises(
        AssertionError, match=r"toy, draft, batch \d: logits\[0, 0\] is .*, by defin"
    ):
        check_graphs(subject(build=echo))
    with pytest.raises(AssertionError, match="by definition"):
        check_drafts(subject(build=echo))


def test_a_fault_in_a_tap_that_nobody_reads_is_found(subject, monkeypatch):
    monkeypatch.setattr(Lowering, "_lower_concat", without_the_last_part_in("toy"))
    check_texts(subject(), Texts(n_texts=1))
    # What is left out is what was there before, which may happen to be right in the first batch.
    with pytest.raises(AssertionError, match=r"toy, llm with all taps, batch \d: wide"):
        check_graphs(subject())


def test_the_kit_knows_how_far_is_too_far(subject):
    """Other sums differ in their last bits: too much for bits, and not for a bound."""
    with pytest.raises(AssertionError, match="by definition"):
        check_graphs(computed_by(subject(), ReferenceBackend("f32")))
    check_graphs(computed_by(subject(), ReferenceBackend("f32")), bound=1e-5)


def computed_by(subject, backend):
    return msgspec.structs.replace(subject, backend=backend)


# Faults of the loop, and of declarations


def test_a_loop_that_feeds_another_output_is_found(subject, monkeypatch):
    def run_schedule(self, schedule, made=CpuPlan.run_schedule):
        built = schedule.round
        stages = [replace(stage, feeds={"hidden": ("token",)}) for stage in built.stages]
        return made(self, replace(schedule, round=replace(built, stages=stages)))

    check_drafts(subject(build=echo))
    monkeypatch.setattr(CpuPlan, "run_schedule", run_schedule)
    check_graphs(subject(build=echo))
    check_texts(subject(build=echo), Texts(n_texts=1))
    with pytest.raises(AssertionError, match="after token 0: drafts are"):
        check_drafts(subject(build=echo))


@pytest.mark.parametrize(
    "changes",
    [
        {"build": swapped},
        {"build": forgetful},
        {"feeds": (Feed(slot="hidden", taps=("residual",), recycle="hidden"),)},
    ],
    ids=["order", "state", "tap"],
)
def test_a_head_that_is_not_its_author_s_is_found(subject, changes):
    """On every backend the same, and no text is another."""
    wrong = subject(**changes)
    check_graphs(wrong)
    check_texts(wrong, Texts(n_texts=1))
    check_drafts(wrong)
    with pytest.raises(AssertionError, match=r"by the author's function, by which token"):
        check_drafts(wrong, scores)


@pytest.mark.parametrize("tree", [GROWN, FIXED], ids=["grown", "fixed"])
def test_the_nodes_of_a_tree_have_the_ranks_that_it_declares(subject, tree, monkeypatch):
    sound = subject()
    shaped = msgspec.structs.replace(sound.spec, shape="tree", tree=tree)
    assert check_drafts(sound, scores, shaped, n_tokens=12) > 12 * 2 * 4

    def swap(schedule, rows, made=base.run_reserved):
        """Take the second best for the best, wherever both are siblings."""
        drafted = made(schedule, rows)
        tokens, drafts = [*drafted.tokens], schedule.round.drafts
        picks = [pick for stage in schedule.round.stages for pick in stage.picks]
        ranked = {(drafts[pick.draft].parent, pick.rank): pick.draft for pick in picks}
        for (parent, rank), draft in ranked.items():
            if rank < 2 and (parent, 1 - rank) in ranked:
                tokens[draft] = drafted.tokens[ranked[parent, 1 - rank]]
        tokens = [
            tokens[of] if token >= 0 else -1
            for of, token in zip(drafted.best_of, tokens, strict=True)
        ]
        return drafted._replace(tokens=tokens)

    monkeypatch.setattr(base, "run_reserved", swap)
    check_drafts(sound, None, shaped, n_tokens=12)
    with pytest.raises(AssertionError, match=r"by the author's function, by which token"):
        check_drafts(sound, scores, shaped, n_tokens=12)


def test_what_is_no_score_for_each_draft_is_said(subject):
    with pytest.raises(AssertionError, match=r"\[2, 64\] scores for 3 drafts"):
        check_drafts(subject(), lambda *given: scores(*given)[1:])
    with pytest.raises(AssertionError, match="nothing was drafted"):
        check_drafts(subject(), scores, k=0)
