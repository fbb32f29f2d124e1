"""Drafts of a block in Python: by its own logits, or by a post-head behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import NO_TOKEN
from mtpcore.backends.base import CHOSEN, F32, CheckedBatch, DraftRun, FusedSampling, Plan, PostHead
from mtpcore.errors import BatchError
from mtpcore.graph.program import OUTPUTS, Program
from mtpcore.memory.base import Memory

__all__ = ["check_block", "draft_block", "until_unreadable"]

Arrays = Mapping[str, NDArray[Any]]


def check_block(run: DraftRun, program: Program) -> None:
    """Raise BatchError where outputs are not the rows that draft, or that its post-head reads."""
    where = "a block"
    if run.batch.parent is not None:
        raise BatchError("drafts are chains", where=where)
    if run.later or run.recycle:
        raise BatchError("one pass makes all drafts", where=where, fix="leave out later, recycle")
    post_head = run.post_head
    if post_head is None:
        _check_rows(run, run.batch.seq[run.batch.outputs].tolist(), where)
        return
    rows, where = post_head.batch, "a post-head"
    if rows.parent is not None:
        raise BatchError("drafts are chains", where=where)
    _check_rows(run, rows.seq[rows.outputs].tolist(), where)
    wanted, got = (seq.tolist() for seq in (rows.seq, run.batch.seq[run.batch.outputs]))
    if wanted != got:
        raise BatchError("a row for each output", where=where, wanted=got, got=wanted)
    ends = np.flatnonzero(np.diff(rows.seq, append=-1)).tolist()
    newest = [
        end - k + 1 + n for end, k in zip(ends, filter(None, run.k), strict=True) for n in range(k)
    ]
    if rows.outputs.tolist() != newest or (not post_head.passes and len(newest) < len(rows.seq)):
        raise BatchError(
            "outputs are the last rows of each sequence, all where they run one by one",
            where=where,
            wanted=newest,
            got=rows.outputs.tolist(),
        )
    slots = post_head.plan.program.slots()
    for slot, width in slots.items():
        names = post_head.feeds.get(slot, ())
        made = [int(program.shape(name)[1]) for name in names if name in program.outputs]
        if len(made) < max(len(names), 1) or sum(made) != width:
            raise BatchError(
                "a slot is fed by outputs of its width",
                where=f"feeds[{slot!r}]",
                wanted=", ".join(program.outputs),
                got=names,
            )
    if {*post_head.feeds} - {*slots}:
        raise BatchError("slots that the graph does not have", where=where, got=[*post_head.feeds])


def _check_rows(run: DraftRun, seq: list[int], where: str) -> None:
    """Raise BatchError where a sequence does not have ``k[i]`` outputs."""
    ends = np.cumsum([0, *run.k]).tolist()
    parts = [seq[begin:end] for begin, end in pairwise(ends)]
    sequences = [part[0] for part in parts if part]
    is_apart = all(len({*part}) <= 1 for part in parts) and len({*sequences}) == len(sequences)
    if len(seq) != ends[-1] or not is_apart:
        raise BatchError(
            "outputs are as many rows of each sequence as it gets drafts",
            where=where,
            wanted=f"{[*run.k]} rows",
            got=f"rows of sequences {seq}",
        )


def draft_block(plan: Plan, run: DraftRun, memory: Memory | None, n_tokens: int) -> list[list[int]]:
    """Return the drafts of each sequence, by ``plan.run``.

    ``n_tokens`` ids have embeddings in the post-head's plan; 0: it reads none.
    """
    none: list[list[int]] = [[] for _ in run.k]
    if run.post_head is None:
        arrays = plan.run(_with_choices(run.batch, run, run.k, none), memory)
        return _choose(run, _spans(run.k), arrays, run.p_min, none)
    arrays = plan.run(run.batch, memory)
    if not len(run.batch.outputs):
        return none
    fed = {
        slot: _rows_of(plan.program, run.batch, arrays, names)
        for slot, names in run.post_head.feeds.items()
    }
    draft = _draft_in_passes if run.post_head.passes else _draft_in_order
    return draft(run, run.post_head, arrays, fed, n_tokens)


def _draft_in_order(
    run: DraftRun, post_head: PostHead, arrays: Arrays, fed: dict[str, F32], n_tokens: int
) -> list[list[int]]:
    """Return each sequence's drafts, row by row, from the token before."""
    spans, tokens = _spans(run.k), post_head.batch.tokens.copy()
    most = [_n_sound(fed, span) for span in spans]
    drafts: list[list[int]] = [[] for _ in run.k]
    going = [i for i, n in enumerate(most) if n]
    while going:
        rows = [spans[i].start + len(drafts[i]) for i in going]
        k = [int(i in going) for i in range(len(run.k))]
        batch = msgspec.structs.replace(post_head.batch, tokens=tokens)
        batch = _with_choices(_taken(batch, rows, range(len(rows)), fed), run, k, drafts)
        arrays = post_head.plan.run(batch, post_head.memory)
        before, drafts = drafts, _choose(run, _spans(k), arrays, run.p_min, drafts)
        going = [
            i
            for i in going
            if len(before[i]) < len(drafts[i]) < most[i] and not 0 < n_tokens <= drafts[i][-1]
        ]
        for i in going:
            tokens[spans[i].start + len(drafts[i])] = drafts[i][-1]
    return drafts


def _draft_in_passes(
    run: DraftRun, post_head: PostHead, arrays: Arrays, fed: dict[str, F32], n_tokens: int
) -> list[list[int]]:
    """Return each sequence's drafts, all at once, in several passes.

    Each pass reads what the one before has chosen, which is Jacobi's iteration (Wang and others
    2026, arXiv 2608.02438). Rows see none behind them, and noise belongs to a place: so draft i
    no longer changes after pass i, and a pass that changes nothing is the last one.
    """
    rows, outputs = post_head.batch, post_head.batch.outputs
    spans = [range(*_ends(outputs, span)) for span in _spans(run.k)]  # rows that choose
    begins = [rows.seq.tolist().index(rows.seq[span.start]) if span else 0 for span in spans]
    none: list[list[int]] = [[] for _ in run.k]
    anyhow = [0.0] * len(run.k)
    sound = [
        max(_n_sound(fed, range(begin, span.stop)) - (span.start - begin), 0) if span else 0
        for begin, span in zip(begins, spans, strict=True)
    ]
    choosing: list[range] = [span[:n] for span, n in zip(spans, sound, strict=True)]
    chosen = _choose(run, choosing, arrays, anyhow, none)
    for _ in range(post_head.passes):
        before, k = chosen, [*map(len, chosen)]
        if not any(k):
            break
        choosing = _spans(k)
        tokens, taken = rows.tokens.copy(), list[int]()
        for begin, span, ids in zip(begins, spans, before, strict=True):
            if ids:
                known = [0 if 0 < n_tokens <= token else token for token in ids[:-1]]
                tokens[span.start + 1 : span.start + len(ids)] = known
                taken += range(begin, span.start + len(ids))
        going = {row for span, n in zip(spans, k, strict=True) for row in span[:n]}
        newest = [at for at, row in enumerate(taken) if row in going]
        batch = _taken(msgspec.structs.replace(rows, tokens=tokens), taken, newest, fed)
        arrays = post_head.plan.run(_with_choices(batch, run, k, none), post_head.memory)
        chosen = _choose(run, choosing, arrays, anyhow, none)
        if chosen == before:
            break
    if any(map(len, chosen)) and max(run.p_min) > 0:
        chosen = _choose(run, choosing, arrays, run.p_min, none)
    return [until_unreadable(ids, n_tokens) for ids in chosen]


def until_unreadable(ids: list[int], n_tokens: int) -> list[int]:
    """Return drafts up to the first one without an embedding: ``n_tokens`` have one (0: all)."""
    ends = (at for at, token in enumerate(ids, start=1) if 0 < n_tokens <= token)
    return ids[: next(ends, len(ids))]


def _spans(k: Sequence[int]) -> list[range]:
    """Return the outputs of each sequence, one after the other."""
    ends = np.cumsum([0, *k]).tolist()
    return [range(begin, end) for begin, end in pairwise(ends)]


def _ends(outputs: NDArray[np.int32], span: range) -> tuple[int, int]:
    """Return the first row of some outputs that follow each other, and the one behind them."""
    return (int(outputs[span.start]), int(outputs[span.stop - 1]) + 1) if span else (0, 0)


def _taken(
    batch: CheckedBatch, rows: Sequence[int], outputs: Sequence[int], slots: Mapping[str, F32]
) -> CheckedBatch:
    """Return some rows of a batch, and those of slots."""
    is_whole = len(rows) == len(batch.tokens)  # mostly all rows, which are not copied
    return CheckedBatch(
        tokens=batch.tokens[rows],
        positions=batch.positions[rows],
        seq=batch.seq[rows],
        place=batch.place[rows],
        outputs=np.array(outputs, np.int32),
        slots={slot: part if is_whole else part[rows] for slot, part in slots.items()},
    )


def _rows_of(program: Program, batch: CheckedBatch, arrays: Arrays, names: Sequence[str]) -> F32:
    """Return what a block made for a slot, float32[n_outputs, width]."""
    parts = []
    for name in names:
        made = np.asarray(arrays[name])
        is_output = program.shape(name)[0] == OUTPUTS
        parts.append(made if is_output else made[batch.outputs])
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _n_sound(fed: Mapping[str, F32], rows: range) -> int:
    """Return how many of these rows come before the first that is not finite."""
    finite = np.ones(len(rows), bool)
    for part in fed.values():
        finite &= np.isfinite(part[rows.start : rows.stop]).all(axis=1)
    return len(rows) if finite.all() else int(finite.argmin())


def _with_choices(
    batch: CheckedBatch, run: DraftRun, k: Sequence[int], before: Sequence[Sequence[int]]
) -> CheckedBatch:
    """Return a batch whose outputs choose ``k[i]`` drafts, where that needs no text before them."""
    places = [(i, len(before[i]) + number) for i, n in enumerate(k) for number in range(n)]
    samplers = [
        run.samplers[i]
        if run.samplers[i].is_gumbel_max and run.p_min[i] <= 0 and not run.processor(i)
        else None
        for i, _ in places
    ]
    if not any(samplers):
        return batch
    indices = [run.indices[i] + number for i, number in places]
    wanted = FusedSampling(samplers=samplers, indices=indices, token_ids=run.token_ids)
    return msgspec.structs.replace(batch, fused_sampling=wanted)


def _choose(
    run: DraftRun,
    spans: Sequence[Sequence[int]],
    arrays: Arrays,
    p_min: Sequence[float],
    before: Sequence[Sequence[int]],
) -> list[list[int]]:
    """Return each sequence's drafts: those before, and one of each output behind them."""
    logits = np.asarray(arrays["logits"])
    chosen = np.asarray(arrays.get(CHOSEN, np.full(len(logits), -1)))
    at_home = np.cumsum(chosen == -1) - 1  # the row of logits of each that has one
    drafts: list[list[int]] = []
    for i, span in enumerate(spans):
        ids = [*before[i]]
        for at in span:
            token = int(chosen[at])
            if token == -1:
                row = logits[at_home[at]]
                text = np.concatenate([run.history[i], np.array(ids, np.int32)])
                if np.isnan(row).any():
                    break
                if (change := run.processor(i)) is not None:
                    row = change(text, row, run.token_ids)
                token, probability = run.samplers[i].choose_with_probability(
                    row, text, run.n_prompt[i], run.indices[i] + len(ids), run.token_ids
                )
                if probability < p_min[i]:
                    break
            if token == NO_TOKEN:
                break
            ids.append(token)
        drafts.append(ids)
    return drafts
