"""What passes cost is compared at one speed of the machine."""

import pytest

from mtpcore.decoding.lengths.costs import Passes

PRICES = {4: 1.0, 7: 1.3}


def measured(rounds):
    """Prices after passes of so many rows each, on a machine that is so many times slower."""
    passes = Passes()
    for now, (rows, slow) in enumerate(rounds):
        passes.observe(rows, slow * PRICES[rows], now)
    return passes


def test_a_slower_machine_changes_no_price():
    passes = measured([(4, 1.0)] * 3 + [(7, 1.0)] * 6 + [(7, 2.0)] * 30)
    assert passes.slowness == pytest.approx(2.0)
    assert {rows: passes.at(rows) for rows in PRICES} == pytest.approx(PRICES)


def test_two_slow_rounds_are_no_slower_machine():
    passes = measured([(7, 1.0)] * 9 + [(7, 3.0)] * 2)
    assert passes.slowness == 1.0
    assert measured([(7, 1.0)] * 9 + [(7, 3.0)] * 3).slowness == pytest.approx(3.0)


def test_a_size_measured_three_times_says_that_the_machine_is_fast_again():
    """Otherwise slow moments of another size would make it cheap for as long as it is in use."""
    passes = measured([(4, 1.0)] * 3 + [(7, 1.0)] * 6 + [(7, 1.25)] * 3 + [(4, 1.0)] * 5)
    assert passes.slowness == pytest.approx(1.0)
    assert passes.at(4) == pytest.approx(PRICES[4], rel=0.01)


def test_what_is_not_known_yet_says_nothing_of_the_speed():
    passes = measured([(4, 1.0), (4, 9.0), (4, 9.0), (7, 9.0), (7, 9.0), (7, 9.0)])
    assert passes.slowness == 1.0


def test_what_was_not_warm_is_the_most_that_a_size_costs():
    """Seven tenths of the least of it count until there is better, and then never again."""
    passes, prices = Passes(), []
    for now, (seconds, is_warm) in enumerate(
        [(9.0, False), (5.0, False), (7.0, False), (6.0, True), (3.0, False), (8.0, True)]
    ):
        passes.observe(4, seconds, now, is_warm=is_warm)
        prices.append((round(passes.at(4), 9), passes.lowest(4, now) < 1e-6, passes.n_seen(4)))
    assert prices == [
        *[(6.3, True, 1), (3.5, True, 1), (3.5, True, 1)],
        *[(6.0, False, 1), (6.0, False, 1), (6.0, False, 2)],
    ]


def test_what_is_not_warm_says_nothing_of_the_speed():
    passes = Passes()
    for now in range(30):
        passes.observe(4, 1.0 if now < 9 else 1.8, now, is_warm=now < 9)
    assert (passes.slowness, passes.at(4)) == (1.0, 1.0)
