"""Whatever cuts off what learns from rounds, at whichever instruction: it goes on from there."""

import math
import random
from contextlib import suppress
from itertools import count

import pytest
from harness.interrupted import Raiser
from harness.simulated_machine import LIMIT

from mtpcore.decoding import Controller, Expectation, Proposed, Round
from mtpcore.decoding.lengths.costs import Curve, DraftCurves, Passes

ROLES = ("a", "b")


def one():
    return Controller({ROLES[0]: Expectation(LIMIT, cost=0.15)})


def several():
    return Controller({role: Expectation(LIMIT, cost=0.15, finds=role == "b") for role in ROLES})


def run_round(policy, number, chance):
    """Let a policy see a round of two texts, of drafts as long as it chose."""
    chosen = policy.choose({0: 50, 1: 50}, {})
    asked, makers = {}, {}
    for seq, lengths in chosen.items():
        for role, k in lengths.items():
            kept = policy.keep(role, {seq: Proposed(k, k, chance.random())})[seq]
            if kept:
                makers[seq], asked[seq] = role, kept
                break
        asked.setdefault(seq, 0)
    assert all(0 <= k <= LIMIT for k in asked.values())
    accepted = {seq: chance.randint(0, k) for seq, k in asked.items()}
    rows, steps = 2 + sum(asked.values()), max(asked.values())
    seconds_of = dict.fromkeys(makers.values(), 0.1 * steps)
    policy.observe(
        Round(
            asked, asked, accepted, rows, 0, 0.1 * steps, 1 + 0.04 * rows, 1e-3,
            makers, seconds_of, is_warm=number % 5 != 2,
        )
    )  # fmt: skip
    if number % 7 == 6:
        policy.forget(number % 2)


def check(learnt):
    for part in learnt["drafters"].values():
        for prices in (learnt["pass_seconds"], part["draft_seconds"]):
            assert all(math.isfinite(price) and price > 0 for price in prices.values())
        assert all(0 <= rate <= 1 for rate in part["acceptance_rates"])


def run(make, number, n_rounds, place):
    """Run rounds, of which one is cut off; return the policy and what was counted of that one."""
    policy, chance = make(), random.Random(number)
    for i in range(n_rounds):
        if i != number:
            run_round(policy, i, chance)
            continue
        with suppress(KeyboardInterrupt), Raiser(place, by_instruction=True) as raiser:
            run_round(policy, i, chance)
    return policy, raiser


@pytest.mark.parametrize("make", [one, several])
@pytest.mark.parametrize("number", [0, 1, 2, 3, 6, 11])
def test_a_round_that_is_cut_off_makes_no_later_one_fail(make, number):
    n_places = run(make, number, number + 1, 10**9)[1].n_seen
    assert n_places > 250
    for place in range(number, n_places, n_places // 50):
        policy, raiser = run(make, number, number + 9, place)
        assert raiser.raised
        check(policy.describe())


@pytest.mark.parametrize("is_warm", [True, False])
@pytest.mark.parametrize("before", [(), (4,), (4, 4, 4, 4)])
@pytest.mark.parametrize(
    "make", [Curve, Passes, lambda: Curve(anchored=True), DraftCurves], ids=range(4)
)
def test_a_measurement_that_is_cut_off_leaves_a_curve(make, before, is_warm):
    """As it was, or with the measurement; and the next ones count."""
    for place in count():
        costs, sizes = make(), (lambda n: (2, n)) if make is DraftCurves else (lambda n: (n,))
        for now, size in enumerate(before):
            costs.observe(*sizes(size), 2.0, now, is_warm=is_warm)
        with suppress(KeyboardInterrupt), Raiser(place, by_instruction=True) as raiser:
            costs.observe(*sizes(4), 1.0, 5)
        for now in (6, 7, 8):  # the first one counts for little more than was expected
            costs.observe(*sizes(7), 3.0, now)
        assert 0.7 <= costs.at(*sizes(4)) <= 3.0
        assert costs.at(*sizes(7)) == 3.0
        assert set(costs.points()) <= {4, 7}
        if not raiser.raised:
            break
    assert place > 30
