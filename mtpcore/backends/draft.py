"""The draft loop in Python: what every backend's own loop must equal, token for token."""

from __future__ import annotations

import numpy as np

from mtpcore.backends.base import DraftRun, Plan, Rows
from mtpcore.errors import BatchError
from mtpcore.graph.program import OUTPUTS, Program
from mtpcore.memory.base import Memory

__all__ = ["check_draft", "draft_steps", "n_embeddings"]


def n_embeddings(program: Program) -> int:
    """Return how many tokens a program has embeddings of; 0 where it reads no tokens."""
    tables = [node.weights[0] for node in program.nodes if node.op == "embed"]
    return min((table.shape[0] for table in tables if table is not None), default=0)


def check_draft(run: DraftRun, program: Program) -> None:
    """Raise BatchError where a draft run does not fit itself or the program."""
    m = len(run.rows.outputs)
    for name in ("samplers", "history", "n_prompt", "k", "p_min"):
        if len(getattr(run, name)) != m:
            raise BatchError(
                "one entry a sequence", where=name, wanted=m, got=len(getattr(run, name))
            )
    seq, outputs = run.rows.seq.tolist(), run.rows.outputs.tolist()
    newest = {one: row for row, one in enumerate(seq)}
    if len({*newest.values()}.intersection(outputs)) != m:
        raise BatchError(
            "outputs are the newest rows of different sequences", got=[seq[row] for row in outputs]
        )
    if run.rows.parent is not None:
        raise BatchError("drafts are chains", where="parent")
    for slot, width in program.slots().items():
        source = run.recycle.get(slot)
        if source not in program.outputs or program.shape(source)[1:] != (width,):
            raise BatchError(
                "a slot is fed by an output of its width",
                where=f"recycle[{slot!r}]",
                wanted=", ".join(program.outputs),
                got=source,
            )
    if "logits" not in program.outputs:
        raise BatchError("a graph without logits cannot draft", where=program.name)


def draft_steps(plan: Plan, run: DraftRun, memory: Memory | None) -> list[list[int]]:
    """Draft by ``plan.run``, pass by pass; see ``DraftRun``."""
    program, rows = plan.program, run.rows
    check_draft(run, program)
    n_tokens = n_embeddings(program)
    drafts: list[list[int]] = [[] for _ in run.k]
    active = list(range(len(run.k)))  # the sequence of each row of logits
    while active:
        made = plan.run(rows, memory)
        going: list[int] = []
        slots: dict[str, list[np.ndarray]] = {slot: [] for slot in run.recycle}
        for at, i in enumerate(active):
            if run.k[i] < 1:
                continue
            history = np.concatenate([run.history[i], np.asarray(drafts[i], np.int32)])
            token, probability = run.samplers[i].choose_with_probability(
                made["logits"][at], history, run.n_prompt[i], len(history), run.token_ids
            )
            if probability < run.p_min[i]:
                continue
            drafts[i].append(token)
            fed = {
                slot: made[name][at if program.shape(name)[0] == OUTPUTS else rows.outputs[at]]
                for slot, name in run.recycle.items()
            }
            if (
                len(drafts[i]) < run.k[i]
                and (n_tokens == 0 or token < n_tokens)
                and all(np.isfinite(row).all() for row in fed.values())
            ):
                going.append(i)
                for slot, row in fed.items():
                    slots[slot].append(row)
        at_newest = [int(rows.outputs[active.index(i)]) for i in going]
        rows = Rows(
            tokens=np.array([drafts[i][-1] for i in going], np.int32),
            positions=rows.positions[at_newest] + np.int32(1),
            seq=rows.seq[at_newest],
            place=rows.place[at_newest] + np.int32(1),
            outputs=np.arange(len(going), dtype=np.int32),
            slots={slot: np.stack(made_rows) for slot, made_rows in slots.items() if made_rows},
        )
        active = going
    return drafts
