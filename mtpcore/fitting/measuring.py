"""How well heads draft: measured with the runtime, on texts that they were not fitted to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.cross import link
from mtpcore.decoding import Generator, Stats
from mtpcore.runtime.context import Context
from mtpcore.runtime.model import Model
from mtpcore.sampling import Sampling

__all__ = ["MeasuredHead", "measure_heads"]

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


def measure_heads(
    target: Model,
    heads: Mapping[str, Model],
    prompts: Sequence[I32],
    n_tokens: int,
    report: Callable[[int, int], None],
    *,
    threads: int | None = None,
) -> dict[str, list[MeasuredHead]]:
    """Let a target continue prompts with each head's drafts and without, greedily and sampled.

    Drafts at temperature 1 are coupled: drawn with the noise that the target's tokens are. All ways
    take turns, text by text, so that a slow minute of the machine hits all alike.

    Parameters
    ----------
    target : Model
    heads : mapping of str to Model
        By the names that the results are to have.
    prompts : sequence of int32[n]
        Without any, nothing is measured.
    n_tokens : int
        The longest continuation of each.
    report : callable
        Told how many tokens of continuations are done, and of how many.
    """
    measured: dict[str, list[MeasuredHead]] = {name: [] for name in heads}
    if not prompts:
        return measured
    n_ctx = max(map(len, prompts)) + n_tokens + _DRAFT + 1
    done, total = 0, 2 * (1 + 2 * len(heads)) * len(prompts) * n_tokens

    def generator_of(
        sampling: Sampling, draft: int | Literal["auto"], head: Model | None = None
    ) -> Generator:
        context = Context(target, n_ctx, threads=threads)
        drafting = context if head is None else link(context, draft_model=head)
        return Generator(drafting, sampling=sampling, draft=draft)

    for temperature in (0.0, 1.0):
        sampling = Sampling(temperature=temperature, seed=1)
        without = generator_of(sampling, 0)
        fixed = {name: generator_of(sampling, _DRAFT, head) for name, head in heads.items()}
        auto = {name: generator_of(sampling, "auto", head) for name, head in heads.items()}
        for prompt in prompts:
            for generator in (without, *fixed.values(), *auto.values()):
                list(generator.generate(prompt.tolist(), max_tokens=n_tokens))
                done += n_tokens
                report(done, total)
        for name, results in measured.items():
            rates = fixed[name].stats
            results.append(
                MeasuredHead(
                    temperature,
                    rates.acceptance_per_position,
                    without.stats.tokens_per_second,
                    auto[name].stats.tokens_per_second,
                    _predict(rates, without.stats),
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
