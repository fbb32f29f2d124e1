"""Drafts of chains and blocks as tests write them down, and the schedules that these are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from mtpcore._ext._sampling import Sampler
from mtpcore.backends.base import I32, ChangeLogits, CheckedBatch, Plan, Verification
from mtpcore.backends.draft import run_schedule
from mtpcore.backends.schedule import Schedule, Stage, Text
from mtpcore.drafting.reserved import ReservedRows, run_reserved
from mtpcore.drafting.stages import (
    Chains,
    block_stage,
    chain_stages,
    head_stages,
    post_head_stages,
)
from mtpcore.memory.base import Memory


class DraftPass(msgspec.Struct, frozen=True):
    """A pass with a plan and a memory of its own, for one head of several."""

    plan: Plan
    memory: Memory | None
    batch: CheckedBatch


class PostHead(msgspec.Struct, frozen=True, kw_only=True):
    """A graph after a block that chooses its drafts; see ``post_head_stages``."""

    plan: Plan
    memory: Memory | None
    batch: CheckedBatch
    feeds: Mapping[str, Sequence[str]]
    passes: int = 0


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
    first, chains = Stage(plan=plan, memory=memory, batch=run.batch), Chains(run.k)
    feeds = {slot: (name,) for slot, name in run.recycle.items()}
    if run.post_head is not None and len(run.batch.outputs):
        after = run.post_head
        rows = Stage(plan=after.plan, memory=after.memory, batch=after.batch)
        stages = post_head_stages(first, rows, chains, after.feeds, passes=after.passes)
    elif run.is_block:
        stages = [block_stage(first, chains)]
    elif run.later:
        later = [Stage(plan=p.plan, memory=p.memory, batch=p.batch) for p in run.later]
        stages = head_stages([first, *later], chains, feeds)
    else:
        stages = chain_stages(first, chains, feeds, step=0 if run.in_place else 1)
    index = run.index or [*map(len, run.history)]
    columns = run.samplers, run.history, run.n_prompt, index, run.p_min
    processors = run.processors or [None] * len(run.k)
    return Schedule(
        stages=[*stages],
        texts=[Text(*one, p) for *one, p in zip(*columns, processors, strict=True)],
        drafts=chains.drafts,
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


def draft_after(runner, batch, k, text, feeds=(), *, ids=None, is_block=False):
    """Return up to k drafts after a batch of one sequence, by a graph with its memory."""
    chains, rows = Chains([k]), ReservedRows(runner, batch)
    if is_block:
        stages = [block_stage(rows.stage, chains)]
    else:
        stages = [*chain_stages(rows.stage, chains, dict(feeds))]
    schedule = Schedule(stages=stages, texts=[text], drafts=chains.drafts, token_ids=ids)
    return schedule.by_text(run_reserved(schedule, [rows]).tokens)[0]
