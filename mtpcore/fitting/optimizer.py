"""AdamW (Loshchilov, Hutter, 2019), with gradients cut to a norm of 1."""

from __future__ import annotations

import jax
import jax.numpy as jnp

__all__ = ["Parameters", "State", "begin_state", "update"]

Parameters = dict[str, jax.Array]
State = dict[str, Parameters]
"""``mean`` and ``square`` of each weight's gradients."""

_BETAS = 0.9, 0.95
_DECAY = 0.01
_LONGEST = 1.0


def begin_state(weights: Parameters) -> State:
    """Return the state before the first step."""
    return {
        part: {name: jnp.zeros_like(values) for name, values in weights.items()}
        for part in ("mean", "square")
    }


def update(
    weights: Parameters, state: State, gradients: Parameters, rate: jax.Array, step: jax.Array
) -> tuple[Parameters, State]:
    """Take one step, and return new weights and state.

    Parameters
    ----------
    weights, gradients : mapping of str to float32 array
    state : State
    rate : float32
    step : int32
        1 for the first.
    """
    norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in gradients.values()))
    cut = jnp.minimum(1.0, _LONGEST / (norm + 1e-6))
    first, second = _BETAS
    changed: Parameters = {}
    means: Parameters = {}
    squares: Parameters = {}
    for name, weight in weights.items():
        g = gradients[name] * cut
        means[name] = mean = first * state["mean"][name] + (1 - first) * g
        squares[name] = square = second * state["square"][name] + (1 - second) * g * g
        direction = mean / (1 - first**step) / (jnp.sqrt(square / (1 - second**step)) + 1e-8)
        decay = _DECAY if weight.ndim > 1 else 0.0
        changed[name] = weight - rate * (direction + decay * weight)
    return changed, {"mean": means, "square": squares}
