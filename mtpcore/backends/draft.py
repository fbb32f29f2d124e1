"""Schedules in Python, stage by stage; a backend's own loop must give the same drafts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._draft import check
from mtpcore._ext._sampling import NO_TOKEN, Sampler
from mtpcore.backends.base import CHOSEN, F32, CheckedBatch, FusedSampling
from mtpcore.backends.schedule import (
    CHOICE,
    KNOWN,
    OF_DRAFT,
    PENDING,
    Best,
    Drafts,
    Pick,
    Rows,
    Schedule,
    Stage,
    Text,
)
from mtpcore.graph.program import OUTPUTS, Program

__all__ = ["run_schedule"]


class _Made(NamedTuple):
    """Rows that a stage made for its outputs, by name, and where each of these stands."""

    arrays: dict[str, F32]
    at: dict[int, int]


class _Choice(NamedTuple):
    """A draft's token, how probable it was, and by which stage and output.

    And the draft before it, the product of the shares on the way to it, and which candidate it is.
    """

    token: int
    probability: float
    stage: int
    output: int
    parent: int
    worth: float
    number: int


def run_schedule(schedule: Schedule) -> Drafts:
    """Run a schedule by ``plan.run``.

    Where a plan chooses after texts, it does: logits are asked for only where a draft's probability
    matters.
    """
    check(schedule)
    return _Round(schedule).run()


class _Round:
    """A schedule while it runs: what was chosen and made so far."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._round = schedule, schedule.round
        self._chosen: dict[int, _Choice] = {}  # by draft
        self._made: dict[int, _Made] = {}  # by stage
        stages = schedule.round.stages
        self._fed = {name for stage in stages for names in stage.feeds.values() for name in names}
        self._anew = {pick.draft for stage in stages if stage.repeats for pick in stage.picks}

    def run(self) -> Drafts:
        """Run all stages; see ``run_schedule``."""
        drafts, texts = self._round.drafts, self._schedule.texts
        for number, stage in enumerate(self._round.stages):
            for _ in range(max(stage.repeats, 1)):
                before = self._tokens()
                if not self._run(number, stage) or self._tokens() == before:
                    break
        for draft in sorted(self._chosen):
            is_likely = self._chosen[draft].probability >= texts[drafts[draft].text].p_min
            if not is_likely or not self._follows(draft):
                del self._chosen[draft]
        numbers = range(len(drafts))
        best_of = [self._chosen[n].number if n in self._chosen else n for n in numbers]
        ran = [number in self._made for number in range(len(self._round.stages))]
        return Drafts(self._tokens(), best_of, ran)

    def _tokens(self) -> list[int]:
        """Return the token of each draft, -1 where it is none."""
        numbers = range(len(self._round.drafts))
        return [self._chosen[n].token if n in self._chosen else -1 for n in numbers]

    def _is_readable(self, token: int) -> bool:
        return not 0 < self._schedule.n_tokens <= token

    def _follows(self, draft: int) -> bool:
        """Say whether the draft before one is there, and can be read."""
        parent = self._chosen[draft].parent
        before = self._chosen.get(parent)
        return parent == PENDING or (before is not None and self._is_readable(before.token))

    def _run(self, number: int, stage: Stage) -> bool:
        """Run a stage, and choose its drafts; return whether there were any to choose."""
        rows, of = self._schedule.rows[number], self._schedule.pass_of(stage)
        above = self._above(rows)
        batch, is_dead = self._fill(stage, rows, above)
        picks = self._open(stage, batch, is_dead)
        if picks or not stage.picks:
            is_whole = not rows.fills or stage.runs_whole or not stage.picks
            batch, at = _leave_out(batch, above, picks, is_whole=is_whole)
            arrays = of.plan.run(self._choosing(stage, batch, at, picks), of.memory)
            self._made[number] = self._keep(of.plan.program, batch, arrays, at)
        for pick in stage.picks:
            self._chosen.pop(pick.draft, None)
        if picks:
            self._choose(number, stage, arrays, at, picks)
        elif stage.picks:
            self._find_best({pick.draft for pick in stage.picks})
        return bool(picks)

    # Before a stage runs

    def _above(self, rows: Rows) -> list[int]:
        """Return the row that each row comes after, -1 where that is what is stored."""
        parent = rows.batch.parent
        if parent is None:
            newest: dict[int, int] = {}
            above = []
            for row, seq in enumerate(rows.batch.seq.tolist()):
                above.append(newest.get(seq, -1))
                newest[seq] = row
            return above
        above = [int(row) for row in parent]
        row_of = {fill.draft: row for row, fill in rows.fills}
        for row, fill in rows.fills:
            choice = self._chosen.get(fill.draft)
            if choice is not None and choice.parent != PENDING:
                above[row] = row_of.get(choice.parent, above[row])
        return above

    def _fill(
        self, stage: Stage, rows: Rows, above: Sequence[int]
    ) -> tuple[CheckedBatch, NDArray[np.bool_]]:
        """Return the batch of a stage with what its rows get, and which rows are dead."""
        batch, is_dead = rows.batch, np.zeros(len(rows.batch.tokens), bool)
        if not rows.fills:
            return batch, is_dead
        widths = self._schedule.pass_of(stage).plan.program.slots()
        tokens = batch.tokens.copy()
        slots = {slot: np.array(rows) for slot, rows in batch.slots.items()}
        for slot in stage.feeds:
            slots.setdefault(slot, np.zeros((len(tokens), widths[slot]), np.float32))
        for row, (_, draft, source, output, _) in rows.fills:
            choice = self._chosen.get(draft)
            if draft != KNOWN:
                if choice is None or not (stage.repeats or self._is_readable(choice.token)):
                    is_dead[row] = True
                    continue
                tokens[row] = choice.token if self._is_readable(choice.token) else 0
            if source == OF_DRAFT and choice is not None:
                source, output = choice.stage, choice.output
            if source == KNOWN or not stage.feeds:
                continue
            made, at = self._made.get(source, _Made({}, {}))
            if output not in at:  # it was left out
                is_dead[row] = True
                continue
            for slot, names in stage.feeds.items():
                slots[slot][row] = np.concatenate([made[name][at[output]] for name in names])
                is_dead[row] |= not np.isfinite(slots[slot][row]).all()
        for row, before in enumerate(above):
            is_dead[row] |= before >= 0 and is_dead[before]
        return msgspec.structs.replace(batch, tokens=tokens, slots=slots), is_dead

    def _open(self, stage: Stage, batch: CheckedBatch, is_dead: NDArray[np.bool_]) -> list[Pick]:
        """Return the picks that may choose a draft."""
        drafts, here = self._round.drafts, {pick.draft for pick in stage.picks}
        best = {draft for pick in here for draft in self._round.after(pick)} - here
        picks: dict[int, Pick] = {}
        for pick in stage.picks:
            parent = drafts[pick.draft].parent
            may_follow = parent == PENDING or parent in best
            may_follow |= parent in (picks if parent in here else self._chosen)
            is_there = not stage.repeats or pick.draft in self._chosen
            if may_follow and is_there and not is_dead[batch.outputs[pick.output]]:
                picks[pick.draft] = pick
        return [*picks.values()]

    def _choosing(
        self, stage: Stage, batch: CheckedBatch, at: Mapping[int, int], picks: Sequence[Pick]
    ) -> CheckedBatch:
        """Return a batch whose outputs choose drafts, where that needs no look at their logits."""
        if "logits" in self._fed:
            return batch
        n, needs_texts = len(batch.outputs), False
        here = {n for pick in stage.picks for n in self._round.after(pick.draft)}
        samplers: list[Sampler | None] = [None] * n
        indices = [0] * n
        texts, n_prompt = [np.zeros(0, np.int32)] * n, [0] * n
        for output, draft, rank in picks:
            if rank != CHOICE:
                continue
            text, number = self._text_of(draft), at[output]
            is_settled = self._round.drafts[draft].parent not in here
            if text.p_min > 0 or text.processor or text.sampler.sampling.is_for_hosts:
                continue
            if not (is_settled or text.sampler.is_gumbel_max):
                continue
            needs_texts |= not text.sampler.is_gumbel_max
            samplers[number] = text.sampler
            indices[number] = text.index + self._round.depths[draft]
            texts[number], n_prompt[number] = self._tokens_before(draft), text.n_prompt
        if not any(samplers):
            return batch
        wanted = FusedSampling(
            samplers=samplers,
            indices=indices,
            token_ids=self._schedule.token_ids,
            texts=texts if needs_texts else (),
            n_prompt=n_prompt if needs_texts else (),
        )
        return msgspec.structs.replace(batch, fused_sampling=wanted)

    # After it ran

    def _keep(
        self, program: Program, batch: CheckedBatch, arrays: dict[str, Any], at: dict[int, int]
    ) -> _Made:
        """Return the rows of outputs that feed slots later."""
        return _Made(
            {
                name: np.asarray(arrays[name])
                if program.shape(name)[0] == OUTPUTS
                else np.asarray(arrays[name])[batch.outputs]
                for name in self._fed & arrays.keys()
            },
            at,
        )

    def _choose(
        self,
        number: int,
        stage: Stage,
        arrays: dict[str, Any],
        at: Mapping[int, int],
        picks: Sequence[Pick],
    ) -> None:
        """Choose drafts, each after those before it."""
        logits = np.asarray(arrays["logits"])
        chosen = np.asarray(arrays.get(CHOSEN, np.full(len(logits), -1)))
        at_home = np.cumsum(chosen == -1) - 1  # the row of logits of each that has one
        are_open = {pick.draft for pick in picks}
        for (output, parent), group in groupby(stage.picks, self._group):
            its = [*group]
            if are_open.isdisjoint(pick.draft for pick in its) or not self._is_there(parent):
                self._find_best({pick.draft for pick in its})
                continue
            token = int(chosen[at[output]])
            row = logits[at_home[at[output]]] if token == -1 else None
            if row is not None and stage.ends_at_nan and np.isnan(row).any():
                made = {}
            elif its[0].rank == CHOICE:
                made = {its[0].draft: (token, 1.0, 1.0)}
                if row is not None:
                    made = {its[0].draft: (*self._choose_from(row, its[0].draft), 1.0)}
            else:
                assert row is not None
                made = self._rank(row, its)
            worth = self._chosen[parent].worth if parent != PENDING else 1.0
            for draft, (token, probability, share) in made.items():
                if token != NO_TOKEN and draft in are_open:
                    self._chosen[draft] = _Choice(
                        *(token, probability, number, output, parent, worth * share, draft)
                    )
            self._find_best({pick.draft for pick in its})

    def _group(self, pick: Pick) -> tuple[int, int]:
        """Return the output that chooses a draft, and the draft before."""
        return pick.output, self._round.drafts[pick.draft].parent

    def _is_there(self, draft: int) -> bool:
        return draft == PENDING or draft in self._chosen

    def _choose_from(self, row: F32, draft: int) -> tuple[int, float]:
        """Return what a row of logits chooses; NO_TOKEN where that is no draft."""
        text, tokens, index, row = self._asked(row, draft)
        token, probability = text.sampler.choose_with_probability(
            row, tokens, text.n_prompt, index, self._schedule.token_ids
        )
        is_likely = probability >= text.p_min or draft in self._anew
        return (token if is_likely else NO_TOKEN), probability

    def _rank(self, row: F32, picks: Sequence[Pick]) -> dict[int, tuple[int, float, float]]:
        """Return the token of each draft with its probability and share, of those that are any."""
        text, tokens, index, row = self._asked(row, picks[0].draft)
        n = max(pick.rank for pick in picks) + 1
        ids, probabilities, shares = text.sampler.rank(
            row, tokens, text.n_prompt, index, n, self._schedule.token_ids
        )
        return {
            draft: (int(ids[rank]), float(probabilities[rank]), float(shares[rank]))
            for _, draft, rank in picks
            if rank < len(ids) and probabilities[rank] >= text.p_min
        }

    def _asked(self, row: F32, draft: int) -> tuple[Text, NDArray[np.int32], int, F32]:
        """Return what chooses a draft, after which tokens, its index, and the logits."""
        text, tokens = self._text_of(draft), self._tokens_before(draft)
        if text.processor is not None:
            row = text.processor(tokens, row, self._schedule.token_ids)
        return text, tokens, text.index + self._round.depths[draft], row

    def _find_best(self, chosen: Collection[int]) -> None:
        """Find the best drafts whose last candidate is among these."""
        for draft in chosen & self._round.found_with.keys():
            for best in self._round.found_with[draft]:
                self._take_best(best)

    def _take_best(self, best: Best) -> None:
        candidates = [self._chosen[n] for n in best.candidates if n in self._chosen]
        if best.goes_on:
            candidates = [one for one in candidates if self._is_readable(one.token)]
        candidates.sort(key=lambda one: -one.worth)
        self._chosen.update(zip(best.drafts, candidates, strict=False))

    def _text_of(self, draft: int) -> Text:
        return self._schedule.texts[self._round.drafts[draft].text]

    def _tokens_before(self, draft: int) -> NDArray[np.int32]:
        """Return the tokens before a draft."""
        parent, before = self._round.drafts[draft].parent, list[int]()
        while parent in self._chosen:
            before.append(self._chosen[parent].token)
            parent = self._chosen[parent].parent
        history = self._text_of(draft).history
        return np.concatenate([history, np.array(before[::-1], np.int32)])


def _leave_out(
    batch: CheckedBatch, above: Sequence[int], picks: Sequence[Pick], *, is_whole: bool
) -> tuple[CheckedBatch, dict[int, int]]:
    """Return the rows that one which chooses comes after, or all, and where outputs are then.

    Rows take the places of their sequence one after the other.
    """
    outputs = range(len(batch.outputs))
    parent = None if batch.parent is None else np.array(above, np.int32)
    if is_whole:
        whole = msgspec.structs.replace(batch, parent=parent)
        return whole, dict(zip(outputs, outputs, strict=True))
    wanted = sorted({pick.output for pick in picks})
    kept = set[int]()
    for row in batch.outputs[wanted].tolist():
        while row >= 0 and row not in kept:
            kept.add(row)
            row = above[row]
    rows = np.array(sorted(kept), np.int32)
    place = np.empty(len(rows), np.int32)
    for seq in np.unique(batch.seq[rows]):
        its = batch.seq[rows] == seq
        place[its] = batch.place[batch.seq == seq][: its.sum()]
    if parent is not None:
        number = {row: i for i, row in enumerate(rows.tolist())} | {-1: -1}
        parent = np.array([number[above[row]] for row in rows.tolist()], np.int32)
    left = msgspec.structs.replace(
        batch,
        tokens=batch.tokens[rows],
        positions=batch.positions[rows],
        seq=batch.seq[rows],
        place=place,
        outputs=np.searchsorted(rows, batch.outputs[wanted]).astype(np.int32),
        parent=parent,
        until=None if batch.until is None else batch.until[rows],
        embeddings=None if batch.embeddings is None else batch.embeddings[rows],
        slots={slot: values[rows] for slot, values in batch.slots.items()},
    )
    return left, {output: at for at, output in enumerate(wanted)}
