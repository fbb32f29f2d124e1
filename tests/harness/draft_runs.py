"""Drafts of chains and blocks as tests write them down, and the schedules that these are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from mtpcore._ext._sampling import Sampler
from mtpcore.backends.base import I32, ChangeLogits, CheckedBatch, Plan, Verification
from mtpcore.backends.draft import run_schedule
from mtpcore.backends.schedule import Pass, Schedule, Text
from mtpcore.drafting.reserved import ReservedRows, run_reserved
from mtpcore.drafting.rounds import RoundInput
from mtpcore.drafting.stages import draft_block, draft_heads, draft_levels
from mtpcore.memory.base import Memory


class DraftPass(msgspec.Struct, frozen=True):
    """A pass with a plan and a memory of its own, for one head of several."""

    plan: Plan
    memory: Memory | None
    batch: CheckedBatch


class PostHead(msgspec.Struct, frozen=True, kw_only=True):
    """A graph after a block that chooses its drafts; see ``draft_block``."""

    plan: Plan
    memory: Memory | None
    batch: CheckedBatch
    feeds: Mapping[str, Sequence[str]]
    passes: int = 0
    n_known: int = 0


class DraftRun(msgspec.Struct, frozen=True, kw_only=True):
    """Drafts of m texts.

    A chain of one plan; with ``later`` each further pass is a head's; ``is_block`` all drafts are
    of one pass, or of a ``post_head`` after it.
    """

    batch: CheckedBatch
    samplers: Sequence[Sampler]
    history: Sequence[I32]
    n_prompt: Sequence[int]
    k: Sequence[int]
    p_min: Sequence[float]
    processors: Sequence[ChangeLogits | None] = ()
    index: Sequence[int] = ()
    recycle: Mapping[str, str] = {}
    token_ids: I32 | None = None
    later: Sequence[DraftPass] = ()
    verification: Verification | None = None
    in_place: bool = False
    is_block: bool = False
    post_head: PostHead | None = None


def scheduled(plan, run, memory):
    """Return the schedule of a run that begins with a plan."""
    passes = [Pass(plan=plan, memory=memory, batch=run.batch)]
    after = [run.post_head] if run.post_head is not None else run.later
    passes += [Pass(plan=one.plan, memory=one.memory, batch=one.batch) for one in after]
    inputs = RoundInput(
        wanted=run.k,
        programs=[one.plan.program for one in passes],
        feeds={slot: (name,) for slot, name in run.recycle.items()},
        step=0 if run.in_place else 1,
    )
    if run.post_head is not None:
        head = run.post_head
        inputs = msgspec.structs.replace(
            inputs, feeds=head.feeds, n_passes=head.passes, n_known=head.n_known
        )
    build = draft_block if run.is_block else draft_heads if run.later else draft_levels
    index = run.index or [*map(len, run.history)]
    columns = run.samplers, run.history, run.n_prompt, index, run.p_min
    processors = run.processors or [None] * len(run.k)
    return Schedule(
        round=build(inputs),
        passes=passes,
        texts=[Text(*one, p) for *one, p in zip(*columns, processors, strict=True)],
        token_ids=run.token_ids,
        verification=run.verification,
    )


def run_drafts(plan, run, memory):
    """Return the drafts of each text, and how many stages ran."""
    schedule = scheduled(plan, run, memory)
    tokens, _, ran = plan.run_schedule(schedule)
    return schedule.by_text(tokens), 1 if run.is_block else sum(ran)


def draft_by_definition(plan, run, memory):
    """Return what ``run_drafts`` does, by the definition."""
    schedule = scheduled(plan, run, memory)
    tokens, _, ran = run_schedule(schedule)
    return schedule.by_text(tokens), 1 if run.is_block else sum(ran)


def stage_logits(plan):
    """Return what stages of a compiled plan write their logits to, with room for many."""
    bound = plan.bind(None, 64, 64, False)
    return dict(bound.outputs)[bound.logits]


def draft_after(runner, batch, k, text, feeds=(), *, ids=None, is_block=False):
    """Return up to k drafts after a batch of one sequence, by a graph with its memory."""
    rows, build = ReservedRows(runner, batch), draft_block if is_block else draft_levels
    inputs = RoundInput(wanted=[k], programs=[runner.program], feeds=dict(feeds))
    schedule = Schedule(round=build(inputs), passes=[rows.given], texts=[text], token_ids=ids)
    return schedule.by_text(run_reserved(schedule, [rows]).tokens)[0]
