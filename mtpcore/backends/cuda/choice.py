"""Tokens that are chosen where their logits are; nothing but the tokens comes home."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtpcore.backends.base import F32, FusedSampling
from mtpcore.backends.cuda.device import Device, DeviceArray
from mtpcore.backends.cuda.launch.tokens import CHOOSER, WINNER, choose, choosers_of, n_parts
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
        self._token_ids = device.empty((n_logits,), np.int32)
        self._named: I32 | None = None  # what _token_ids holds

    def check(self, wanted: FusedSampling, n_outputs: int) -> None:
        """Raise BatchError or SamplingError where samplers do not fit outputs and logits."""
        if not len(wanted.samplers) == len(wanted.indices) == n_outputs:
            raise BatchError(
                "one choice an output",
                where="fused_sampling",
                wanted=n_outputs,
                got=(len(wanted.samplers), len(wanted.indices)),
            )
        for i, (sampler, index) in enumerate(zip(wanted.samplers, wanted.indices, strict=True)):
            if sampler is None:
                continue
            sampler.check(self._logits.shape[1], index, wanted.token_ids)
            if not sampler.is_gumbel_max:
                raise SamplingError("a choice needs all of its logits", where=f"output {i}")

    def run(self, wanted: FusedSampling) -> tuple[I32, F32]:
        """Return the token of each output, -1 where it has no sampler, and the logits of these.

        Returns
        -------
        chosen : int32[n_outputs]
        logits : float32[n_without, n_logits]
        """
        pairs = zip(wanted.samplers, wanted.indices, strict=True)
        choosers = choosers_of(
            (sampler, index, row)
            for row, (sampler, index) in enumerate(pairs)
            if sampler is not None
        )
        chosen = np.full(len(wanted.samplers), -1, np.int32)
        if len(choosers):
            self._device.upload(choosers, self._choosers)
            names, n = self._names_of(wanted.token_ids), len(choosers)
            arrays = self._logits, self._choosers, names, self._winners, self._ids
            for launch in choose(*arrays, n):
                loaded = self._device.load(launch.kernel)
                self._device.launch(loaded, launch.grid, launch.block, launch.arguments)
            chosen[choosers["row"]] = self._device.download(self._ids, n)
        return chosen, self._rows(np.flatnonzero(chosen < 0))

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
