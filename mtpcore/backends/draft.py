"""The draft loop in Python; a backend's own loop must give the same tokens."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import msgspec
import numpy as np

from mtpcore.backends.base import F32, DraftRun, Plan, Rows
from mtpcore.errors import BatchError
from mtpcore.graph.program import OUTPUTS, Program
from mtpcore.memory.base import Memory

__all__ = ["check_draft", "draft_steps", "n_embeddings"]

Fed = dict[str, F32]
"""Rows float32[width] of slots."""


def n_embeddings(program: Program) -> int:
    """Return how many tokens a program has embeddings of; 0 where it reads no tokens."""
    tables = [node.weights[0] for node in program.nodes if node.op == "embed"]
    return min((table.shape[0] for table in tables if table is not None), default=0)


def check_draft(run: DraftRun, program: Program) -> None:
    """Raise BatchError where a draft run does not fit itself or the programs of its passes."""
    m = len(run.rows.outputs)
    for name in ("samplers", "history", "n_prompt", "k", "p_min"):
        if len(getattr(run, name)) != m:
            raise BatchError(
                "one entry a sequence", where=name, wanted=m, got=len(getattr(run, name))
            )
    passes = [(program, run.rows), *((later.plan.program, later.rows) for later in run.later)]
    most = max(run.k, default=0)
    if run.later and most > len(passes):
        raise BatchError("a pass for each draft", wanted=most, got=len(passes))
    sequences = run.rows.seq[run.rows.outputs].tolist()
    for number, (program_of_pass, rows) in enumerate(passes):
        going = [seq for seq, k in zip(sequences, run.k, strict=True) if k > number or not number]
        _check_rows(number, rows, going)
        _check_program(program_of_pass, run.recycle, reads_drafts=most > 1 and not run.later)


def _check_rows(number: int, rows: Rows, going: list[int]) -> None:
    """Raise BatchError where a pass lacks tokens of these sequences or their drafts."""
    where = f"pass {number}"
    if rows.parent is not None:
        raise BatchError("drafts are chains", where=where)
    seq, outputs = rows.seq.tolist(), rows.outputs.tolist()
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


def _check_program(program: Program, recycle: Mapping[str, str], *, reads_drafts: bool) -> None:
    """Raise BatchError where a program has no logits, or no output that fits a recycled slot."""
    for slot, width in program.slots().items():
        source = recycle.get(slot)
        if source is None and not reads_drafts:
            continue
        if source not in program.outputs or program.shape(source)[1:] != (width,):
            raise BatchError(
                "a slot is fed by an output of its width",
                where=f"recycle[{slot!r}]",
                wanted=", ".join(program.outputs),
                got=source,
            )
    if "logits" not in program.outputs:
        raise BatchError("a graph without logits cannot draft", where=program.name)


def draft_steps(plan: Plan, run: DraftRun, memory: Memory | None) -> tuple[list[list[int]], int]:
    """Draft by ``plan.run``, pass by pass; see ``DraftRun``."""
    check_draft(run, plan.program)
    programs = [plan.program, *(later.plan.program for later in run.later)]
    n_tokens = min(filter(None, map(n_embeddings, programs)), default=0)
    drafts: list[list[int]] = [[] for _ in run.k]
    fed: list[list[Fed]] = [[] for _ in run.k]  # what the row of each draft gets that goes on
    rows, n_passes = run.rows, 0
    active = going = list(range(len(run.k)))  # the sequence of each row of logits
    while going:
        arrays, program = plan.run(rows, memory), plan.program
        n_passes += 1
        live, going = going, []
        for at, i in enumerate(active):
            if i not in live or run.k[i] < 1:
                continue
            history = np.concatenate([run.history[i], np.asarray(drafts[i], np.int32)])
            token, probability = run.samplers[i].choose_with_probability(
                arrays["logits"][at], history, run.n_prompt[i], len(history), run.token_ids
            )
            if probability < run.p_min[i]:
                continue
            drafts[i].append(token)
            slot_rows = {
                slot: arrays[name][at if program.shape(name)[0] == OUTPUTS else rows.outputs[at]]
                for slot, name in run.recycle.items()
            }
            if (
                len(drafts[i]) < run.k[i]
                and (n_tokens == 0 or token < n_tokens)
                and all(np.isfinite(row).all() for row in slot_rows.values())
            ):
                going.append(i)
                fed[i].append(slot_rows)
        if going and run.later:
            plan, memory, rows = msgspec.structs.astuple(run.later[n_passes - 1])
            active = [i for i, k in enumerate(run.k) if k > n_passes]
            rows = _fill_in(rows, [(drafts[i], fed[i]) for i in active], n_passes)
        elif going:
            newest = [int(rows.outputs[active.index(i)]) for i in going]
            rows = _go_on(rows, newest, [drafts[i][-1] for i in going], [fed[i][-1] for i in going])
            active = going
    return drafts, n_passes


def _fill_in(rows: Rows, drafted: list[tuple[list[int], list[Fed]]], n_drafts: int) -> Rows:
    """Return the rows of a later pass with the drafts that its sequences got so far."""
    tokens, slots = rows.tokens.copy(), {name: slot.copy() for name, slot in rows.slots.items()}
    for newest, (drafts, fed) in zip(rows.outputs.tolist(), drafted, strict=True):
        for i, slot_rows in enumerate(fed):
            row = newest - n_drafts + 1 + i
            if row < 0 or rows.seq[row] != rows.seq[newest]:
                continue
            tokens[row] = drafts[i]
            for slot, values in slot_rows.items():
                slots[slot][row] = values
    return msgspec.structs.replace(rows, tokens=tokens, slots=slots)


def _go_on(rows: Rows, newest: list[int], tokens: list[int], fed: list[Fed]) -> Rows:
    """Return one row for each sequence that goes on from its newest row."""
    return Rows(
        tokens=np.array(tokens, np.int32),
        positions=rows.positions[newest] + np.int32(1),
        seq=rows.seq[newest],
        place=rows.place[newest] + np.int32(1),
        outputs=np.arange(len(newest), dtype=np.int32),
        slots={slot: np.stack([slot_rows[slot] for slot_rows in fed]) for slot in fed[0]},
    )
