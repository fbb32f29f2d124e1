"""The draft loop in Python; a backend's own loop must give the same tokens."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import NO_TOKEN
from mtpcore.backends.base import CHOSEN, F32, CheckedBatch, DraftRun, FusedSampling, Plan
from mtpcore.backends.block_draft import check_block, draft_block
from mtpcore.errors import BatchError
from mtpcore.graph.parts import part_sizes
from mtpcore.graph.program import OUTPUTS, Program
from mtpcore.memory.base import Memory

__all__ = ["check_draft", "draft_steps", "n_embeddings"]

SlotRows = dict[str, F32]
"""Rows float32[width] of slots."""


def n_embeddings(program: Program) -> int:
    """Return how many tokens a program has embeddings of; 0 where it reads no tokens."""
    tables = [
        (node.weights[0], node.attrs.get("n_parts", 1), node.attrs.get("n_first", 0))
        for node in program.nodes
        if node.op in ("embed", "embed_by_position")
    ]
    return min(
        (max(part_sizes(table.shape[0], n, first)) for table, n, first in tables if table),
        default=0,
    )


def check_draft(run: DraftRun, program: Program) -> None:
    """Raise BatchError where a draft run does not fit itself or the programs of its passes."""
    m = len(run.k) if run.is_block else len(run.batch.outputs)
    names = ["samplers", "history", "n_prompt", "k", "p_min", "indices"]
    for name in [*names, "processors"] if run.processors else names:
        if len(getattr(run, name)) != m:
            raise BatchError(
                "one entry a sequence", where=name, wanted=m, got=len(getattr(run, name))
            )
    if run.is_block:
        check_block(run, program)
        programs = [program] if run.post_head is None else [program, run.post_head.plan.program]
        for one in programs:
            _check_program(one, run, None)
        return
    most = max(run.k, default=0)
    passes = [(program, run.batch), *((later.plan.program, later.batch) for later in run.later)]
    if run.later and most > len(passes):
        raise BatchError("a pass for each draft", wanted=most, got=len(passes))
    sequences = run.batch.seq[run.batch.outputs].tolist()
    before = program if most > 1 and not run.later else None
    for number, (program_of_pass, batch) in enumerate(passes):
        going = [seq for seq, k in zip(sequences, run.k, strict=True) if k > number or not number]
        _check_rows(number, batch, going)
        _check_program(program_of_pass, run, before)
        before = program_of_pass


def _check_rows(number: int, batch: CheckedBatch, going: list[int]) -> None:
    """Raise BatchError where a pass lacks tokens of these sequences or their drafts."""
    where = f"pass {number}"
    if batch.parent is not None:
        raise BatchError("drafts are chains", where=where)
    seq, outputs = batch.seq.tolist(), batch.outputs.tolist()
    newest = {sequence: row for row, sequence in enumerate(seq)}
    if outputs != [newest.get(sequence) for sequence in going]:
        raise BatchError(
            "outputs are the newest rows of different sequences",
            where=where,
            wanted=f"sequences {going}",
            got=f"rows {outputs} of sequences {seq}",
        )
    n_runs = 1 + sum(sequence != other for sequence, other in pairwise(seq))
    if number and n_runs > len(newest):
        raise BatchError("rows of a sequence stand together", where=where, got=f"sequences {seq}")


def _check_program(program: Program, run: DraftRun, before: Program | None) -> None:
    """Raise BatchError where a program has no logits, or lacks what it is to read or to recycle.

    ``before`` is the program that makes what it reads, if any does.
    """
    for slot, width in program.slots().items():
        source = run.recycle.get(slot)
        if source is None and (before is None or run.later):
            continue
        for one, wanted in ((program, None), (before, (width,))):
            if one is None:
                continue
            if source not in one.outputs or wanted not in (None, one.shape(source)[1:]):
                raise BatchError(
                    "a slot is fed by an output of its width",
                    where=f"recycle[{slot!r}]",
                    wanted=", ".join(one.outputs),
                    got=source,
                )
    if "codes" in program.inputs:
        raise BatchError("a graph that reads codes cannot draft", where=program.name)
    if "logits" not in program.outputs:
        raise BatchError("a graph without logits cannot draft", where=program.name)


def draft_steps(plan: Plan, run: DraftRun, memory: Memory | None) -> tuple[list[list[int]], int]:
    """Draft by ``plan.run``, pass by pass; see ``DraftRun``.

    Where all plans choose after texts, they do: logits are asked for only where a draft's
    probability matters.
    """
    check_draft(run, plan.program)
    if run.is_block:
        behind = run.post_head and run.post_head.plan.program
        return draft_block(plan, run, memory, n_embeddings(behind) if behind else 0), 1
    plans = [plan, *(later.plan for later in run.later)]
    programs = [one.program for one in plans]
    chooses_after_texts = all(one.chooses_after_texts for one in plans)
    n_tokens = min(filter(None, map(n_embeddings, programs)), default=0)
    drafts: list[list[int]] = [[] for _ in run.k]
    indices = run.indices
    # What the row of each draft gets that goes on.
    slot_rows: list[list[SlotRows]] = [[] for _ in run.k]
    batch, n_passes = run.batch, 0
    active = going = list(range(len(run.k)))  # the sequence of each row of logits
    while going:
        texts = [np.concatenate([run.history[i], np.array(drafts[i], np.int32)]) for i in active]
        if chooses_after_texts:
            wanted = _fused_sampling(run, active, texts, [len(drafts[i]) for i in active])
            batch = msgspec.structs.replace(batch, fused_sampling=wanted)
        arrays, program = plan.run(batch, memory), plan.program
        chosen = arrays.get(CHOSEN, np.full(len(active), -1))
        at_home = np.cumsum(chosen == -1) - 1  # the row of logits of each that has one
        n_passes += 1
        live, going = going, []
        for at, i in enumerate(active):
            if i not in live or run.k[i] < 1:
                continue
            token = int(chosen[at])
            if token == -1:
                row, change = arrays["logits"][at_home[at]], run.processor(i)
                token, probability = run.samplers[i].choose_with_probability(
                    row if change is None else change(texts[at], row, run.token_ids),
                    texts[at],
                    run.n_prompt[i],
                    indices[i] + len(drafts[i]),
                    run.token_ids,
                )
                if probability < run.p_min[i]:
                    continue
            if token == NO_TOKEN:
                continue
            drafts[i].append(token)
            recycled = {
                slot: arrays[name][at if program.shape(name)[0] == OUTPUTS else batch.outputs[at]]
                for slot, name in run.recycle.items()
            }
            if (
                len(drafts[i]) < run.k[i]
                and (n_tokens == 0 or token < n_tokens)
                and all(np.isfinite(row).all() for row in recycled.values())
            ):
                going.append(i)
                slot_rows[i].append(recycled)
        if going and run.later:
            plan, memory, batch = msgspec.structs.astuple(run.later[n_passes - 1])
            active = [i for i, k in enumerate(run.k) if k > n_passes]
            batch = _fill_in(batch, [(drafts[i], slot_rows[i]) for i in active], n_passes)
        elif going:
            newest = [int(batch.outputs[active.index(i)]) for i in going]
            tokens = [drafts[i][-1] for i in going]
            rows = [slot_rows[i][-1] for i in going]
            batch = _go_on(batch, newest, tokens, rows, 0 if run.in_place else 1)
            active = going
    return drafts, n_passes


def _fused_sampling(
    run: DraftRun, active: list[int], texts: list[NDArray[np.int32]], n_drafts: list[int]
) -> FusedSampling:
    """Return what chooses from the rows of these sequences, each with its drafts so far."""
    return FusedSampling(
        samplers=[
            None if run.p_min[i] > 0 or run.processor(i) else run.samplers[i] for i in active
        ],
        indices=[run.indices[i] + n for i, n in zip(active, n_drafts, strict=True)],
        token_ids=run.token_ids,
        texts=texts,
        n_prompt=[run.n_prompt[i] for i in active],
    )


def _fill_in(
    batch: CheckedBatch, drafted: list[tuple[list[int], list[SlotRows]]], n_drafts: int
) -> CheckedBatch:
    """Return the rows of a later pass with the drafts that its sequences got so far."""
    tokens = batch.tokens.copy()
    slots = {name: np.array(slot) for name, slot in batch.slots.items()}
    for newest, (drafts, recycled) in zip(batch.outputs.tolist(), drafted, strict=True):
        for i, slot_rows in enumerate(recycled):
            row = newest - n_drafts + 1 + i
            if row < 0 or batch.seq[row] != batch.seq[newest]:
                continue
            tokens[row] = drafts[i]
            for slot, values in slot_rows.items():
                slots[slot][row] = values
    return msgspec.structs.replace(batch, tokens=tokens, slots=slots)


def _go_on(
    batch: CheckedBatch,
    newest: list[int],
    tokens: list[int],
    rows: list[SlotRows],
    step: int,
) -> CheckedBatch:
    """Return one row for each sequence that goes on, ``step`` places behind its newest row."""
    return CheckedBatch(
        tokens=np.array(tokens, np.int32),
        positions=batch.positions[newest] + np.int32(step),
        seq=batch.seq[newest],
        place=batch.place[newest] + np.int32(step),
        outputs=np.arange(len(newest), dtype=np.int32),
        slots={slot: np.stack([slot_rows[slot] for slot_rows in rows]) for slot in rows[0]},
    )
