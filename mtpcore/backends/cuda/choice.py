"""Tokens that are chosen where their logits are; nothing but the tokens comes home."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import Sampler
from mtpcore.backends.base import F32, FusedSampling
from mtpcore.backends.cuda.device import Device, DeviceArray
from mtpcore.backends.cuda.launch.passes import Odds, weigh
from mtpcore.backends.cuda.launch.step import Launch
from mtpcore.backends.cuda.launch.tokens import (
    ADJUSTMENT,
    CHOOSER,
    CUT,
    N_DIGITS,
    TALLY,
    WINNER,
    Cuts,
    adjust,
    adjustments_of,
    choose,
    choosers_of,
    cut,
    cuts_of,
    find_tops,
    n_parts,
    settle,
)
from mtpcore.backends.cuda.staging import Part
from mtpcore.errors import BatchError, SamplingError

__all__ = ["Choice", "Choosing"]

I32 = NDArray[np.int32]


class Choosing(NamedTuple):
    """What decides the launches of a choice: n samplers, and what they ask for.

    Adjustments have room for ``most_adjustments``; where they outgrow it, they move.
    """

    n: int
    n_adjustments: int
    most_adjustments: int
    has_cuts: bool
    has_names: bool
    has_odds: bool


class Choice:
    """Who chooses a token from which of a plan's rows of logits.

    Parameters
    ----------
    device : Device
        Where the logits are.
    logits : DeviceArray
        float32[n_batch, n_logits], the rows of all outputs.

    Attributes
    ----------
    logits : DeviceArray
    ids : DeviceArray
        int32[n_batch], the tokens that were chosen, of all outputs with samplers in their order.
    odds : Odds
        How probable they are, where that was asked for.
    """

    def __init__(self, device: Device, logits: DeviceArray) -> None:
        n_batch, n_logits = logits.shape
        self._device, self.logits = device, logits
        self._choosers = device.empty((n_batch,), CHOOSER)
        self._winners = device.empty((n_batch, n_parts(n_logits)), WINNER)
        self.ids = device.empty((n_batch,), np.int32)
        self._cuts = Cuts(
            device.empty((n_batch,), CUT),
            device.empty((n_batch,), np.int32),
            device.empty((n_batch, N_DIGITS), TALLY),
        )
        self.odds = Odds(
            device.empty((n_batch,), np.int32),
            self._cuts.tops,
            device.empty((n_batch,), np.uint64),
        )
        self._adjustments = device.empty((1,), ADJUSTMENT)  # grows: a power of two
        self._token_ids = device.empty((n_logits,), np.int32)
        self._named: I32 | None = None  # what _token_ids holds

    def check(self, wanted: FusedSampling, n_outputs: int) -> None:
        """Raise BatchError or SamplingError where samplers do not fit outputs and logits."""
        given = [len(wanted.samplers), len(wanted.indices)]
        if wanted.texts:
            given += [len(wanted.texts), len(wanted.n_prompt)]
        if {*given} != {n_outputs}:
            where = "fused_sampling"
            raise BatchError("one choice an output", where=where, wanted=n_outputs, got=given)
        for i, (sampler, index) in enumerate(zip(wanted.samplers, wanted.indices, strict=True)):
            if sampler is None:
                continue
            sampler.check(self.logits.shape[1], index, wanted.token_ids)
            if wanted.texts and not 0 <= wanted.n_prompt[i] <= len(wanted.texts[i]):
                raise SamplingError(
                    "the prompt is not a part of the text",
                    where=f"output {i}",
                    wanted=f"n_prompt from 0 to {len(wanted.texts[i])}",
                    got=wanted.n_prompt[i],
                )
            if not (wanted.texts or sampler.is_gumbel_max):
                raise SamplingError("a choice needs the text before it", where=f"output {i}")

    def take(self, wanted: FusedSampling, *, has_odds: bool = False) -> tuple[Choosing, list[Part]]:
        """Return what decides the launches of a choice, and what they go by, to be held.

        ``has_odds`` asks how probable the chosen tokens are.
        """
        who = _who(wanted)
        parts = [Part(choosers_of(who), self._choosers)]
        adjustments = self._adjust(wanted, who)
        if len(adjustments):
            parts.append(Part(adjustments, self._adjustments))
        cuts = cuts_of(sampler for sampler, *_ in who)
        has_cuts = bool((cuts["is_open"] | (cuts["min_p"] > 0)).any())
        if has_cuts:
            zeros = np.zeros((len(who), N_DIGITS), TALLY)  # what was cut off left others there
            parts += [Part(cuts, self._cuts.cuts), Part(zeros, self._cuts.tallies)]
        if has_odds:
            parts.append(Part(np.zeros(len(who), np.uint64), self.odds.totals))
        names = self._names_of(wanted.token_ids)
        shape = Choosing(
            *(len(who), len(adjustments), self._adjustments.shape[0]),
            *(has_cuts, names is not None, has_odds),
        )
        return shape, parts if who else []

    def launches(self, shape: Choosing) -> Iterator[Launch]:
        """Yield what lets samplers choose that ``take`` was told of, and are held."""
        logits, choosers, winners, n = self.logits, self._choosers, self._winners, shape.n
        if not n:
            return
        yield from adjust(logits, self._adjustments, shape.n_adjustments)
        if shape.has_cuts or shape.has_odds:
            yield from find_tops(logits, choosers, winners, self._cuts.tops, n)
        if shape.has_cuts:
            yield from cut(logits, choosers, self._cuts, winners, n)
        names, cuts = self._token_ids, self._cuts
        yield from choose(
            *(logits, choosers, names if shape.has_names else None, winners, self.ids, n),
            cuts if shape.has_cuts else None,
        )
        if shape.has_odds:
            yield settle(winners, self.odds.rows, n)
            yield weigh(logits, self.odds, n)

    def result(self, wanted: FusedSampling) -> tuple[I32, F32]:
        """Wait for the token of each output, -1 where it has no sampler, and the logits of these.

        Returns
        -------
        chosen : int32[n_outputs]
        logits : float32[n_without, n_logits]
        """
        who = _who(wanted)
        chosen = np.full(len(wanted.samplers), -1, np.int32)
        if who:
            chosen[[row for *_, row in who]] = self._device.download(self.ids, len(who))
        return chosen, self._rows(np.flatnonzero(chosen < 0))

    def _adjust(
        self, wanted: FusedSampling, who: list[tuple[Sampler, int, int]]
    ) -> NDArray[np.void]:
        """Return bias and penalties of the logits, filled up with some that do nothing."""
        n_logits, parts = self.logits.shape[1], [np.empty(0, ADJUSTMENT)]
        for sampler, _, row in who if wanted.texts else ():
            text, n_prompt = wanted.texts[row], wanted.n_prompt[row]
            parts.append(adjustments_of(sampler, text, n_prompt, row, n_logits, wanted.token_ids))
        adjustments = np.concatenate(parts)
        n = len(adjustments)
        if n > self._adjustments.shape[0]:
            self._adjustments = self._device.empty((1 << n.bit_length(),), ADJUSTMENT)
        more = np.zeros((1 << (n - 1).bit_length()) - n if n else 0, ADJUSTMENT)
        more["at"] = -1
        return np.concatenate([adjustments, more])

    def _names_of(self, token_ids: I32 | None) -> DeviceArray | None:
        """Return token ids on the device; they are mostly those of the run before."""
        if token_ids is None:
            return None
        if self._named is None or (self._named != token_ids).any():
            self._named = None
            self._device.upload(token_ids, self._token_ids)
            self._named = token_ids.copy()
        return self._token_ids

    def _rows(self, rows: NDArray[np.intp]) -> F32:
        """Return these rows of logits, neighbours in one go."""
        n_logits = self.logits.shape[1]
        logits = np.empty((len(rows), n_logits), np.float32)
        for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) > 1) + 1):
            if len(part):
                at, n_bytes = 4 * n_logits * int(rows[part[0]]), 4 * n_logits * len(part)
                values = np.frombuffer(self._device.read(self.logits, at, n_bytes), np.float32)
                logits[part] = values.reshape(len(part), n_logits)
        return logits


def _who(wanted: FusedSampling) -> list[tuple[Sampler, int, int]]:
    """Return the samplers that there are, with the index of each one's token and its output."""
    pairs = zip(wanted.samplers, wanted.indices, strict=True)
    return [(one, index, row) for row, (one, index) in enumerate(pairs) if one is not None]
