"""Scenarios of simulated machines in which draft lengths are chosen, each with its regret."""

import math
import random
from statistics import mean

from harness.simulated_machine import LIMIT, ROLE, SHAPES, TWO_CORES, Machine, falling
from mtpcore.decoding import Controller, Expectation, Round

EASY, HARD, USUAL = falling(0.9), falling(0.05), falling(0.8)


def make_controller(acceptance=0.7, limit=LIMIT, *, finds=False):
    """Return a controller of one head, or of one that finds drafts."""
    return Controller({ROLE: Expectation(limit, acceptance, 0.15, finds)})


def lengths_of(plans):
    """Return by sequence how much the head is asked for."""
    return {seq: plan.get(ROLE, 0) for seq, plan in plans.items()}


def done_round(asked, made, accepted, rows, prompt_rows, draft, seconds, choose=0.0, **more):
    """Return a round in which the head made what drafts there are."""
    makers = {seq: ROLE for seq, n in made.items() if n}
    seconds_of = {ROLE: draft} if makers else {}
    return Round(
        *(asked, made, accepted, rows, prompt_rows, draft, seconds, choose, makers, seconds_of),
        **more,
    )


def auto(machine, rates, n_rounds, controller=None, **settings):
    """Return tokens a second of a controller."""
    controller = controller or make_controller()
    return machine.run(controller.choose, rates, n_rounds, observe=controller.observe, **settings)[
        0
    ]


def scenarios():
    """Return scenarios by name: by seed, the speed of ``auto`` over that of a fixed length.

    It is the best length of a machine that stays as it is, and four drafts of one that changes.
    """
    found = {}
    for name, shape in SHAPES.items():
        for first in (0.3, 0.6, 0.9):
            found[f"{name}, {first}"] = _Steady(Machine(*shape), falling(first), 800)
    for n_seqs in (4, 16):
        for first in (0.3, 0.7, 0.95):
            steady = _Steady(Machine(*TWO_CORES), falling(first), 300, n_seqs)
            found[f"{n_seqs} texts, {first}"] = steady
    for name in ("dense", "dear drafts"):
        found[f"short texts, {name}"] = _Steady(Machine(*SHAPES[name]), USUAL, 60)
    return found | {
        "the text changes": _text_changes,
        "prices change": _prices_change,
        "slow for a while": lambda seed: _at_speed(lambda i: 2.5 if i // 200 % 2 else 1.0, seed),
        "wandering speed": lambda seed: _at_speed(_wandering(seed), seed),
    }


class _Steady:
    def __init__(self, machine, rates, n_rounds, n_seqs=1):
        self.machine, self.rates, self.n_rounds, self.n_seqs = machine, rates, n_rounds, n_seqs

    def __call__(self, seed):
        """Return the share of the best length's speed; of short runs that of several."""
        runs = range(6 * seed, 6 * seed + 6) if self.n_rounds < 100 else [seed]
        speed = mean(
            auto(self.machine, self.rates, self.n_rounds, n_seqs=self.n_seqs, seed=one)
            for one in runs
        )
        return speed / self.machine.best(self.rates, self.n_seqs)


def _text_changes(seed):
    def rates(i, seq):
        return (HARD if 300 <= i < 900 else EASY)(i, seq)

    machine = Machine(*SHAPES["dense"])
    return auto(machine, rates, 1500, seed=seed) / machine.fixed(4, rates, 1500, seed=seed)


def _prices_change(seed):
    def speed(run):
        passes = iter(range(1500))

        def verify(n):
            return 1 + (2.0 if 300 < next(passes) <= 900 else 0.04) * (n - 1)

        return run(Machine(verify, SHAPES["dense"][1]))

    found = speed(lambda machine: auto(machine, USUAL, 1500, seed=seed))
    return found / speed(lambda machine: machine.fixed(4, USUAL, 1500, seed=seed))


def _at_speed(speed, seed):
    machine = Machine(*SHAPES["dense"], speed=speed)
    return auto(machine, USUAL, 1200, seed=seed) / machine.fixed(4, USUAL, 1200, seed=seed)


def _wandering(seed):
    rng, speeds = random.Random(seed), [1.0]
    for _ in range(2000):
        speeds.append(min(max(speeds[-1] * math.exp(rng.gauss(0, 0.03)), 0.5), 2.0))
    return lambda i: speeds[i]
