"""Recurrent operations: rows of sequences go on from states on the device."""

from __future__ import annotations

import msgspec

from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.step import Launch, Launcher, Step, blocks_of
from mtpcore.errors import BackendError
from mtpcore.graph.program import DeltaLayer, StateLayer

__all__ = ["KERNELS", "LAUNCHERS", "StepStates", "settle"]

_CHAINS, _COLUMNS = 4, 32
"""Threads of a column of a delta rule's state, and columns of a block."""

_BY_HEAD, _BY_CHANNEL, _BY_COLUMN = range(3)
"""What has decays, as the kernel counts."""

_ENTRIES = (16, 32, 64)
"""Entries of a column that a thread has, at most."""

_CONVOLVE = Kernel("causal_conv")
_ADVANCE = {
    (entries, decays): Kernel("delta_rule", (("ENTRIES", str(entries)), ("DECAYS", str(decays))))
    for entries in _ENTRIES
    for decays in (_BY_HEAD, _BY_CHANNEL, _BY_COLUMN)
}
KERNELS = (_CONVOLVE, *_ADVANCE.values())


class StepStates(msgspec.Struct, frozen=True):
    """The states of a step's layer on the device, and how those of a run go on.

    ``bases`` float32[slots, ...] and ``logs`` float32[slots, LOG, values of a row] have rows as
    ``StateLayer`` counts them. ``walks`` int32[...] is of at most ``n_seq`` sequences and
    ``n_rows`` rows (``kernels/advance.cuh``).
    """

    layer: StateLayer
    bases: DeviceArray
    logs: DeviceArray
    walks: DeviceArray
    n_seq: int
    n_rows: int


def causal_conv(step: Step, n_rows: int) -> list[Launch]:
    """Convolve each row with those before it."""
    states, layer, is_silu = step.memory, step.memory.layer, step.attrs["kind"] == "silu"
    arguments = _CONVOLVE.arguments(
        x=step.inputs[0],
        w=step.weights[0],
        y=step.outputs[0],
        bases=states.bases,
        logs=states.logs,
        walks=states.walks,
        n_seq=states.n_seq,
        n_rows=states.n_rows,
        n_channels=layer.channels,
        n_taps=layer.kernel,
        is_silu=is_silu,
    )
    return [Launch(_CONVOLVE, (n_rows, blocks_of(layer.channels)), arguments)]


def delta_rule(step: Step, n_rows: int) -> list[Launch]:
    """Take each row into the state of its sequence, and read that.

    Raises
    ------
    BackendError
        Keys are wider than the kernel has registers for.
    """
    q, k, v, decays, betas = step.inputs
    y = step.outputs[0]
    rows = {"q": q, "k": k, "v": v, "decays": decays, "betas": betas, "y": y}
    return [_advance(step.memory, n_rows, step.weights[0] if step.weights else None, **rows)]


def settle(states: StepStates, rates: DeviceArray | None = None) -> Launch:
    """Write a delta rule's base after rows of a log, as the one sequence in ``walks`` says."""
    return _advance(states, 1, rates)


def _advance(
    states: StepStates, n_rows: int, rates: DeviceArray | None, **rows: DeviceArray
) -> Launch:
    """Launch the kernel; ``rows`` are q, k, v, decays, betas and y, or none of them."""
    layer = states.layer
    assert isinstance(layer, DeltaLayer)
    decays = _BY_CHANNEL if layer.by_channel else _BY_HEAD
    if layer.rates is not None:
        decays = _BY_COLUMN
    n_entries = -(-layer.k_width // _CHAINS)
    if n_entries > _ENTRIES[-1]:
        raise BackendError(
            "keys of a delta rule are too wide for the CUDA kernel",
            wanted=f"at most {_CHAINS * _ENTRIES[-1]} entries",
            got=layer.k_width,
            fix="use backend='cpu'",
        )
    kernel = _ADVANCE[next(most for most in _ENTRIES if n_entries <= most), decays]
    if rates is not None:
        rows["rates_of_columns"] = rates
    arguments = kernel.arguments(
        bases=states.bases,
        logs=states.logs,
        walks=states.walks,
        n_seq=states.n_seq,
        n_rows=states.n_rows,
        n_heads=layer.n_heads,
        n_key_heads=layer.n_key_heads,
        k_width=layer.k_width,
        v_width=layer.v_width,
        is_tiled=layer.key_heads == "tiled",
        corrects=layer.corrects,
        **rows,
    )
    grid = min(n_rows, states.n_seq), layer.n_heads * -(-layer.v_width // _COLUMNS)
    return Launch(kernel, grid, arguments, block=_CHAINS * _COLUMNS)


LAUNCHERS: dict[str, Launcher] = {"causal_conv": causal_conv, "delta_rule": delta_rule}
