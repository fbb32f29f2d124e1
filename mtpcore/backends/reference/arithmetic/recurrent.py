"""The gated delta rule and the causal convolution, to the last bit.

A state's columns do not meet: column j of a head is made from entry j of v. Sums over the entries
of a key are four chains side by side, entry i in chain i mod 4, and two steps at the end. So a
kernel has a lane for each column, and its sums do not wait for each other.
"""

from __future__ import annotations

import numpy as np

from mtpcore.backends.reference.arithmetic.functions import ACTIVATIONS, exp
from mtpcore.backends.reference.arithmetic.fused import F32, fma

__all__ = ["advance", "convolve", "read_state"]

CHAINS = 4


def convolve(window: F32, w: F32, kind: str) -> F32:
    """Return kind of the sum over taps, oldest first: [kernel, channels] -> [channels]."""
    total = np.zeros(window.shape[1], np.float32)
    for tap, row in enumerate(window):
        total = fma(w[:, tap], row, total)
    return total if kind == "none" else ACTIVATIONS[kind](total)


def advance(
    state: F32, k: F32, v: F32, decay: F32, beta: F32, *, corrects: bool, rates: F32 | None = None
) -> F32:
    """Return the state after one more row; all by head, [H, Dk, Dv].

    The state times its decay is rounded before anything reads it; so are a decay times a rate, v
    less the sum, where it corrects, and beta times that. The product of k and d is not.
    """
    if rates is None:
        decay = decay[:, :, None] if decay.ndim == 2 else decay[:, None, None]
    else:
        decay = decay[:, None] * rates
    decayed = state * exp(decay)
    change = beta[:, None] * (v - read_state(decayed, k) if corrects else v)
    return fma(k[:, :, None], change[:, None], decayed)


def read_state(state: F32, q: F32) -> F32:
    """Return the sum over i of q[i] state[i] for each head: [H, Dk, Dv], [H, Dk] -> [H, Dv]."""
    n_heads, k_width, v_width = state.shape
    chains = np.zeros((n_heads, CHAINS, v_width), np.float32)
    for begin in range(0, k_width, CHAINS):
        entries = slice(begin, min(begin + CHAINS, k_width))
        n = entries.stop - begin
        chains[:, :n] = fma(state[:, entries], q[:, entries, None], chains[:, :n])
    return np.asarray((chains[:, 0] + chains[:, 2]) + (chains[:, 1] + chains[:, 3]))
