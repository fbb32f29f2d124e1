"""Whatever cuts off what learns from rounds, at whichever instruction: it goes on from there."""

import math
import random
from contextlib import suppress

import pytest
from harness.interrupted import Raiser
from harness.simulated_machine import LIMIT, SHAPES, Machine, falling

from mtpcore.decoding import Controller, OrderController
from mtpcore.decoding.lengths.costs import Passes

CALLS = ("choose", "observe", "forget")


class Cut:
    """Calls a policy; one call, the ``number``-th, is cut off at a place, and not repeated."""

    def __init__(self, policy, number, place):
        self.policy, self.number, self.place = policy, number, place
        self.raised, self.lengths = [], {}

    def _call(self, function, *args, instead=None):
        self.number -= 1
        if self.number:
            return function(*args)
        with suppress(KeyboardInterrupt), Raiser(self.place, by_instruction=True) as raiser:
            return function(*args)
        self.raised = raiser.raised
        return instead

    def choose(self, limits, fixed):
        return self._call(self.policy.choose, limits, fixed) or self.choose(limits, fixed)

    def observe(self, done):
        return self._call(self.policy.observe, done, instead=[])

    def forget(self, seq):
        self._call(self.policy.forget, seq)


def controller():
    return Controller(LIMIT, start=3)


def run(policy, seed, n_rounds=60):
    """Run rounds of three texts, which end now and then; return the lengths of the last ones."""
    machine, chance = Machine(*SHAPES["dense"]), random.Random(seed)

    def observe(done):
        said = policy.observe(done)
        if not chance.randrange(12):
            policy.forget(chance.randrange(3))
        return said

    _, asked, _ = machine.run(
        policy.choose, falling(0.9), n_rounds, n_seqs=3, observe=observe, seed=seed
    )
    return asked[-8:]


@pytest.mark.parametrize("seed", range(120))
def test_a_call_that_is_cut_off_makes_no_other_one_fail(seed):
    chance = random.Random(seed)
    number = chance.choice([chance.randrange(1, 14), chance.randrange(1, 90)])
    cut = Cut(controller(), number, int(chance.expovariate(1 / 150)))
    asked = run(cut, seed)
    learnt = cut.policy.describe()
    for prices in (learnt["pass_seconds"], learnt["draft_seconds"]):
        assert all(math.isfinite(price) and price > 0 for price in prices.values())
    assert all(0 <= rate <= 1 for rate in learnt["acceptance_rates"])
    assert sum(k for lengths in asked for k in lengths.values()) > 8 * 3
