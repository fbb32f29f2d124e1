"""Draft runs of contexts: one that goes on by itself, or several of which each makes a draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mtpcore.backends.base import DraftPass, DraftRun
from mtpcore.batch import Batch
from mtpcore.errors import BatchError
from mtpcore.rows import admit

if TYPE_CHECKING:
    from mtpcore.context import Context

__all__ = ["run_drafts"]


def run_drafts(
    passes: Sequence[tuple[Context, Batch]], k: Sequence[int], choices: Mapping[str, Any]
) -> list[list[int]]:
    """Run a draft in an act that is under way; only rows that ran are kept."""
    taken = []
    for context, batch in passes:
        rows, ranges, _ = admit(context, batch)
        if len(batch) > context.n_batch:
            raise BatchError("a draft runs in one piece", wanted=context.n_batch, got=len(batch))
        taken.append((context, rows, ranges, {seq: context.lengths[seq] for seq in ranges}))
        room = ranges
        if len(passes) == 1:
            seqs = rows.seq[rows.outputs].tolist()
            ahead = {seq: max(n - 1, 0) for seq, n in zip(seqs, k, strict=True)}
            room = {seq: (begin, end + ahead[seq]) for seq, (begin, end) in ranges.items()}
        if context.memory:
            context.memory.reserve(room)
    (first, rows, _, _), *others = taken
    later = [DraftPass(one.plan, one.memory, its) for one, its, _, _ in others]
    found, n_run = first.plan.draft(DraftRun(rows=rows, k=k, later=later, **choices), first.memory)
    for number, (context, _, ranges, before) in enumerate(taken):
        for seq, (_, end) in ranges.items():
            kept = end if number < n_run else before[seq]
            if context.memory:
                context.memory.rewind(seq, kept)
            context.lengths[seq] = kept
    return found
