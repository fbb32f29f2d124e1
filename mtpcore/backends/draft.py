"""Schedules in Python, stage by stage; a backend's own loop must give the same drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import NO_TOKEN, Sampler
from mtpcore.backends.base import CHOSEN, F32, CheckedBatch, FusedSampling
from mtpcore.backends.schedule import (
    KNOWN,
    OF_DRAFT,
    PENDING,
    Pick,
    Schedule,
    Stage,
    check_schedule,
)
from mtpcore.graph.program import OUTPUTS

__all__ = ["run_schedule"]


class _Made(NamedTuple):
    """Rows that a stage made for its outputs, by name, and where each of these stands."""

    arrays: dict[str, F32]
    at: dict[int, int]


class _Choice(NamedTuple):
    """A draft's token, how probable it was, and by which stage and output."""

    token: int
    probability: float
    stage: int
    output: int


def run_schedule(schedule: Schedule) -> tuple[list[int], list[bool]]:
    """Run a schedule by ``plan.run``.

    Where a plan chooses after texts, it does: logits are asked for only where a draft's probability
    matters.

    Returns
    -------
    tokens : list of int
        The token of each draft, -1 where it is none.
    ran : list of bool
        Which stages were run.
    """
    check_schedule(schedule)
    return _Round(schedule).run()


class _Round:
    """A schedule while it runs: what was chosen and made so far."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._chosen: dict[int, _Choice] = {}  # by draft
        self._made: dict[int, _Made] = {}  # by stage
        stages = schedule.stages
        self._fed = {name for stage in stages for names in stage.feeds.values() for name in names}
        self._anew = {pick.draft for stage in stages if stage.repeats for pick in stage.picks}

    def run(self) -> tuple[list[int], list[bool]]:
        """Run all stages; see ``run_schedule``."""
        drafts, texts = self._schedule.drafts, self._schedule.texts
        for number, stage in enumerate(self._schedule.stages):
            for _ in range(max(stage.repeats, 1)):
                before = self._tokens()
                if not self._run(number, stage) or self._tokens() == before:
                    break
        for draft in sorted(self._chosen):
            is_likely = self._chosen[draft].probability >= texts[drafts[draft].text].p_min
            if not is_likely or not self._follows(draft):
                del self._chosen[draft]
        ran = [number in self._made for number in range(len(self._schedule.stages))]
        return self._tokens(), ran

    def _tokens(self) -> list[int]:
        """Return the token of each draft, -1 where it is none."""
        none = _Choice(-1, 0.0, 0, 0)
        return [self._chosen.get(n, none).token for n in range(len(self._schedule.drafts))]

    def _is_readable(self, token: int) -> bool:
        return not 0 < self._schedule.n_tokens <= token

    def _follows(self, draft: int) -> bool:
        """Say whether the draft before one is there, and can be read."""
        parent = self._schedule.drafts[draft].parent
        before = self._chosen.get(parent)
        return parent == PENDING or (before is not None and self._is_readable(before.token))

    def _run(self, number: int, stage: Stage) -> bool:
        """Run a stage, and choose its drafts; return whether there were any to choose."""
        batch, is_dead = self._fill(stage)
        picks = self._open(stage, is_dead)
        if picks or not stage.picks:
            batch, at = _leave_out(stage, batch, picks)
            arrays = stage.plan.run(self._choosing(stage, batch, at, picks), stage.memory)
            self._made[number] = self._keep(stage, batch, arrays, at)
        for pick in stage.picks:
            self._chosen.pop(pick.draft, None)
        if picks:
            self._choose(number, stage, arrays, at, picks)
        return bool(picks)

    # Before a stage runs

    def _fill(self, stage: Stage) -> tuple[CheckedBatch, NDArray[np.bool_]]:
        """Return the batch of a stage with what its rows get, and which rows are dead."""
        batch, is_dead = stage.batch, np.zeros(len(stage.batch.tokens), bool)
        if not stage.fills:
            return batch, is_dead
        widths, tokens = stage.plan.program.slots(), batch.tokens.copy()
        slots = {slot: np.array(rows) for slot, rows in batch.slots.items()}
        for slot in stage.feeds:
            slots.setdefault(slot, np.zeros((len(tokens), widths[slot]), np.float32))
        for row, draft, source, output in stage.fills:
            choice = self._chosen.get(draft)
            if draft != KNOWN:
                if choice is None or not (stage.repeats or self._is_readable(choice.token)):
                    is_dead[row] = True
                    continue
                tokens[row] = choice.token if self._is_readable(choice.token) else 0
            if source == OF_DRAFT and choice is not None:
                source, output = choice.stage, choice.output
            if source == KNOWN:
                continue
            made, at = self._made.get(source, _Made({}, {}))
            if output not in at:  # it was left out
                is_dead[row] = True
                continue
            for slot, names in stage.feeds.items():
                slots[slot][row] = np.concatenate([made[name][at[output]] for name in names])
                is_dead[row] |= not np.isfinite(slots[slot][row]).all()
        for seq in np.unique(batch.seq[is_dead]):
            its = np.flatnonzero(batch.seq == seq)
            is_dead[its] = np.logical_or.accumulate(is_dead[its])
        return msgspec.structs.replace(batch, tokens=tokens, slots=slots), is_dead

    def _open(self, stage: Stage, is_dead: NDArray[np.bool_]) -> list[Pick]:
        """Return the picks that may choose a draft."""
        drafts, here = self._schedule.drafts, {pick.draft for pick in stage.picks}
        picks: dict[int, Pick] = {}
        for pick in stage.picks:
            parent = drafts[pick.draft].parent
            is_behind = parent == PENDING or parent in (picks if parent in here else self._chosen)
            is_there = not stage.repeats or pick.draft in self._chosen
            if is_behind and is_there and not is_dead[stage.batch.outputs[pick.output]]:
                picks[pick.draft] = pick
        return [*picks.values()]

    def _choosing(
        self, stage: Stage, batch: CheckedBatch, at: Mapping[int, int], picks: Sequence[Pick]
    ) -> CheckedBatch:
        """Return a batch whose outputs choose drafts, where that needs no look at their logits."""
        if "logits" in self._fed:
            return batch
        n, after_texts = len(batch.outputs), stage.plan.chooses_after_texts
        here = {pick.draft for pick in stage.picks}
        samplers: list[Sampler | None] = [None] * n
        indices = [0] * n
        texts, n_prompt = [np.zeros(0, np.int32)] * n, [0] * n
        for output, draft in picks:
            text, number = self._schedule.texts[self._schedule.drafts[draft].text], at[output]
            is_settled = after_texts and self._schedule.drafts[draft].parent not in here
            if text.p_min > 0 or text.processor or not (is_settled or text.sampler.is_gumbel_max):
                continue
            samplers[number] = text.sampler
            indices[number] = text.index + self._schedule.depths[draft]
            texts[number], n_prompt[number] = self._text(draft), text.n_prompt
        if not any(samplers):
            return batch
        wanted = FusedSampling(
            samplers=samplers,
            indices=indices,
            token_ids=self._schedule.token_ids,
            texts=texts if after_texts else (),
            n_prompt=n_prompt if after_texts else (),
        )
        return msgspec.structs.replace(batch, fused_sampling=wanted)

    # After it ran

    def _keep(
        self, stage: Stage, batch: CheckedBatch, arrays: dict[str, Any], at: dict[int, int]
    ) -> _Made:
        """Return the rows of outputs that feed slots later."""
        program = stage.plan.program
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
        for output, draft in picks:
            parent = self._schedule.drafts[draft].parent
            if parent != PENDING and parent not in self._chosen:
                continue
            token, probability = int(chosen[at[output]]), 1.0
            if token == -1:
                row = logits[at_home[at[output]]]
                if stage.ends_at_nan and np.isnan(row).any():
                    continue
                token, probability = self._choose_from(row, draft)
            if token != NO_TOKEN:
                self._chosen[draft] = _Choice(token, probability, number, output)

    def _choose_from(self, row: F32, draft: int) -> tuple[int, float]:
        """Return what a row of logits chooses; NO_TOKEN where that is no draft."""
        text = self._schedule.texts[self._schedule.drafts[draft].text]
        tokens, ids = self._text(draft), self._schedule.token_ids
        if text.processor is not None:
            row = text.processor(tokens, row, ids)
        index = text.index + self._schedule.depths[draft]
        token, probability = text.sampler.choose_with_probability(
            row, tokens, text.n_prompt, index, ids
        )
        is_likely = probability >= text.p_min or draft in self._anew
        return (token if is_likely else NO_TOKEN), probability

    def _text(self, draft: int) -> NDArray[np.int32]:
        """Return the tokens before a draft."""
        text, before = self._schedule.drafts[draft], list[int]()
        while text.parent in self._chosen:
            before.append(self._chosen[text.parent].token)
            text = self._schedule.drafts[text.parent]
        history = self._schedule.texts[text.text].history
        return np.concatenate([history, np.array(before[::-1], np.int32)])


def _leave_out(
    stage: Stage, batch: CheckedBatch, picks: Sequence[Pick]
) -> tuple[CheckedBatch, dict[int, int]]:
    """Return a batch without rows after the last one of each sequence that chooses.

    And where each output is then.
    """
    outputs = range(len(batch.outputs))
    if not stage.fills or stage.runs_whole or not stage.picks or len(picks) == len(outputs):
        return batch, dict(zip(outputs, outputs, strict=True))
    wanted = sorted(pick.output for pick in picks)
    last = {int(batch.seq[row]): int(row) for row in batch.outputs[wanted]}
    rows = np.array(
        [row for row, seq in enumerate(batch.seq.tolist()) if row <= last.get(seq, -1)], np.int32
    )
    left = CheckedBatch(
        tokens=batch.tokens[rows],
        positions=batch.positions[rows],
        seq=batch.seq[rows],
        place=batch.place[rows],
        outputs=np.searchsorted(rows, batch.outputs[wanted]).astype(np.int32),
        slots={slot: values[rows] for slot, values in batch.slots.items()},
    )
    return left, {output: at for at, output in enumerate(wanted)}
