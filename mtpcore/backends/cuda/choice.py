"""Tokens that are chosen where their logits are; nothing but the tokens comes home."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mtpcore._ext._sampling import Sampler
from mtpcore.backends.base import F32, FusedSampling
from mtpcore.backends.cuda.device import Device, DeviceArray
from mtpcore.backends.cuda.launch.step import Launch, start
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
    n_parts,
)
from mtpcore.errors import BatchError, SamplingError

__all__ = ["Choice"]

I32 = NDArray[np.int32]


class Choice:
    """Who chooses a token from which of a plan's rows of logits.

    Parameters
    ----------
    device : Device
        Where the logits are.
    logits : DeviceArray
        float32[n_batch, n_logits], the rows of all outputs.
    """

    def __init__(self, device: Device, logits: DeviceArray) -> None:
        n_batch, n_logits = logits.shape
        self._device, self._logits = device, logits
        self._choosers = device.empty((n_batch,), CHOOSER)
        self._winners = device.empty((n_batch, n_parts(n_logits)), WINNER)
        self._ids = device.empty((n_batch,), np.int32)
        self._cuts = Cuts(
            device.empty((n_batch,), CUT),
            device.empty((n_batch,), np.int32),
            device.upload(np.zeros((n_batch, N_DIGITS), TALLY)),
        )
        self._adjustments = device.empty((1,), ADJUSTMENT)  # grows
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
            sampler.check(self._logits.shape[1], index, wanted.token_ids)
            if wanted.texts and not 0 <= wanted.n_prompt[i] <= len(wanted.texts[i]):
                raise SamplingError(
                    "the prompt is not a part of the text",
                    where=f"output {i}",
                    wanted=f"n_prompt from 0 to {len(wanted.texts[i])}",
                    got=wanted.n_prompt[i],
                )
            if not (wanted.texts or sampler.is_gumbel_max):
                raise SamplingError("a choice needs the text before it", where=f"output {i}")

    def run(self, wanted: FusedSampling) -> tuple[I32, F32]:
        """Return the token of each output, -1 where it has no sampler, and the logits of these.

        Returns
        -------
        chosen : int32[n_outputs]
        logits : float32[n_without, n_logits]
        """
        pairs = zip(wanted.samplers, wanted.indices, strict=True)
        who = [
            (sampler, index, row)
            for row, (sampler, index) in enumerate(pairs)
            if sampler is not None
        ]
        chosen = np.full(len(wanted.samplers), -1, np.int32)
        if who:
            start(self._device, self._launches(wanted, who))
            chosen[[row for *_, row in who]] = self._device.download(self._ids, len(who))
        return chosen, self._rows(np.flatnonzero(chosen < 0))

    def _launches(
        self, wanted: FusedSampling, who: list[tuple[Sampler, int, int]]
    ) -> Iterator[Launch]:
        """Upload what those who choose go by; yield what chooses."""
        logits, choosers, winners, n = self._logits, self._choosers, self._winners, len(who)
        self._device.upload(choosers_of(who), choosers)
        yield from self._adjust(wanted, who)
        cuts, found = cuts_of(sampler for sampler, *_ in who), None
        if (cuts["is_open"] | (cuts["min_p"] > 0)).any():
            self._device.upload(cuts, self._cuts.cuts)
            found = self._cuts
            yield from cut(logits, choosers, found, winners, n)
        names = self._names_of(wanted.token_ids)
        yield from choose(logits, choosers, names, winners, self._ids, n, found)

    def _adjust(self, wanted: FusedSampling, who: list[tuple[Sampler, int, int]]) -> list[Launch]:
        """Return what applies bias and penalties to the logits, which do not come home."""
        n_logits, parts = self._logits.shape[1], [np.empty(0, ADJUSTMENT)]
        for sampler, _, row in who if wanted.texts else ():
            text, n_prompt = wanted.texts[row], wanted.n_prompt[row]
            parts.append(adjustments_of(sampler, text, n_prompt, row, n_logits, wanted.token_ids))
        adjustments = np.concatenate(parts)
        if len(adjustments) > self._adjustments.shape[0]:
            self._adjustments = self._device.empty((2 * len(adjustments),), ADJUSTMENT)
        self._device.upload(adjustments, self._adjustments)
        return adjust(self._logits, self._adjustments, len(adjustments))

    def _names_of(self, token_ids: I32 | None) -> DeviceArray | None:
        """Return token ids on the device; they are mostly those of the run before."""
        if token_ids is None:
            return None
        if self._named is None or (self._named != token_ids).any():
            self._device.upload(token_ids, self._token_ids)
            self._named = token_ids.copy()
        return self._token_ids

    def _rows(self, rows: NDArray[np.intp]) -> F32:
        """Return these rows of logits, neighbours in one go."""
        n_logits = self._logits.shape[1]
        logits = np.empty((len(rows), n_logits), np.float32)
        for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) > 1) + 1):
            if len(part):
                at, n_bytes = 4 * n_logits * int(rows[part[0]]), 4 * n_logits * len(part)
                values = np.frombuffer(self._device.read(self._logits, at, n_bytes), np.float32)
                logits[part] = values.reshape(len(part), n_logits)
        return logits
