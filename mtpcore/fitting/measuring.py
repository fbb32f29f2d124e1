"""How well a head drafts: measured with the runtime, on texts that it was not fitted to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.cross import link
from mtpcore.decoding import Generator, Stats
from mtpcore.runtime.context import Context
from mtpcore.runtime.model import Model
from mtpcore.sampling import Sampling

__all__ = ["MeasuredHead", "measure_head"]

I32 = NDArray[np.int32]

_DRAFT = 4
"""Drafts of a round whose acceptance is measured."""


class MeasuredHead(msgspec.Struct, frozen=True):
    """What drafts are worth at one temperature.

    Attributes
    ----------
    temperature : float
    acceptance : list of float
        By position: in which share of the rounds that draft was accepted.
    plain, drafted : float
        Tokens a second without drafts, and with the draft lengths that ``draft="auto"`` chose.
    predicted : float
        Tokens a second with the best fixed draft length, 0 included, by acceptance and by the times
        of passes and drafts.
    """

    temperature: float
    acceptance: list[float]
    plain: float
    drafted: float
    predicted: float


def measure_head(
    target: Model,
    head: Model,
    prompts: Sequence[I32],
    n_tokens: int,
    report: Callable[[int, int], None],
    *,
    threads: int | None = None,
) -> list[MeasuredHead]:
    """Let a target continue prompts with a head's drafts and without, greedily and sampled.

    Drafts at temperature 1 are coupled: drawn with the noise that the target's tokens are.

    Parameters
    ----------
    target, head : Model
    prompts : sequence of int32[n]
    n_tokens : int
        The longest continuation of each.
    report : callable
        Told how many tokens of continuations are done, and of how many.
    """
    n_ctx = max(map(len, prompts)) + n_tokens + _DRAFT + 1
    ways: tuple[int | Literal["auto"], ...] = (_DRAFT, 0, "auto")
    done, total = 0, 2 * len(ways) * len(prompts) * n_tokens
    measured = []
    for temperature in (0.0, 1.0):
        sampling = Sampling(temperature=temperature, seed=1)
        generators = [
            Generator(
                link(Context(target, n_ctx, threads=threads), draft_model=head),
                sampling=sampling,
                draft=draft,
            )
            for draft in ways
        ]
        for prompt in prompts:
            for generator in generators:  # in turn: a slow minute hits all alike
                list(generator.generate(prompt.tolist(), max_tokens=n_tokens))
                done += n_tokens
                report(done, total)
        rates, plain, drafted = (generator.stats for generator in generators)
        measured.append(
            MeasuredHead(
                temperature,
                rates.acceptance_per_position,
                plain.tokens_per_second,
                drafted.tokens_per_second,
                _predict(rates, plain),
            )
        )
    return measured


def _predict(drafting: Stats, plain: Stats) -> float:
    """Return tokens a second with the best length; what a draft costs grows evenly with it."""
    if not (plain.passes and drafting.passes):
        return 0.0
    tokens = np.cumsum([1.0, *drafting.acceptance_per_position])
    without = plain.tokens_per_pass / plain.tokens_per_second
    longest = drafting.tokens_per_pass / drafting.tokens_per_second
    seconds = np.linspace(without, longest, len(tokens))
    return float(np.max(tokens / seconds))
