"""``draft="auto"`` on simulated machines: it finds the best length, and does no harm."""

import math
import random
import re
from collections import Counter

import pytest
from harness.length_scenarios import done_round, lengths_of, make_controller
from harness.search import searching
from harness.simulated_machine import LIMIT, ROLE, SHAPES, TWO_CORES, Machine, falling, steps
from hypothesis import given
from hypothesis import strategies as st

from mtpcore.decoding import LengthPolicy, Proposed

EASY, HARD = falling(0.9), falling(0.05)


def auto(machine, rates, n_rounds, controller=None, **settings):
    """Run a controller; return tokens a second, lengths by round, and what it said."""
    controller = controller or make_controller()
    return machine.run(controller.choose, rates, n_rounds, observe=controller.observe, **settings)


def quiet(shape):
    """A machine that nothing disturbs, with a drafter that has nothing to catch up with."""
    return Machine(*SHAPES[shape], noise=0.0, slow_round=10**9, read=0.0)


def count(asked):
    return Counter(k for lengths in asked for k in lengths.values())


@pytest.mark.parametrize("first", [0.2, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_comes_near_the_best_fixed_length(shape, first):
    """Within 5 % of the best of all lengths, plain decoding included, over 1,500 rounds."""
    machine, rates = Machine(*SHAPES[shape]), falling(first)
    assert auto(machine, rates, 1500)[0] > 0.95 * machine.best(rates)


@pytest.mark.parametrize("shape", ["dense", "tiles of four rows", "dear drafts"])
def test_short_texts_do_not_pay_for_learning(shape):
    """Within 8 % of the best fixed length in the first 60 rounds, on average over texts."""
    machine, rates = Machine(*SHAPES[shape]), falling(0.8)
    found = [auto(machine, rates, 60, seed=seed)[0] for seed in range(20)]
    assert sum(found) / 20 > 0.92 * machine.best(rates)


@pytest.mark.parametrize("shape", ["never pays", "drafts dearer than passes"])
def test_it_is_off_within_ten_rounds_and_loses_little(shape):
    """At most 1.5 % of plain speed over 3,000 rounds."""
    machine, rates = Machine(*SHAPES[shape]), falling(0.6)
    speed, asked, said = auto(machine, rates, 3000)
    assert speed > 0.985 * machine.fixed(0, rates, 3000)
    assert count(asked[10:])[0] > 0.98 * 2990
    off = next(decision for decision in said if not decision.draft)
    assert off.round <= 32
    assert re.match(
        r"off: a pass of \d rows costs .* drafting \d costs .* would be 0\.", off.reason
    )


@pytest.mark.parametrize("n_seqs", [1, 4, 16])
@pytest.mark.parametrize("shape", ["never pays", "drafts dearer than passes", "dense"])
def test_trying_costs_little_where_no_draft_is_accepted(shape, n_seqs):
    """Two percent at most, over new texts too."""
    machine, controller = quiet(shape), make_controller(0.5)
    speeds = []
    for _ in range(10):
        speeds.append(auto(machine, falling(0.0), 300, controller, n_seqs=n_seqs)[0])
        for seq in range(n_seqs):
            controller.forget(seq)
    assert sum(speeds) / 10 > 0.98 * machine.expected(0, falling(0.0), n_seqs)


def test_trees_cost_the_rows_of_the_tree():
    """Four nodes for each token in a row: half a pass to draft them, four more to verify."""
    controller, seconds = make_controller(0.5), 0.0
    for _ in range(1000):
        asked = lengths_of(controller.choose({0: LIMIT}, {}))
        rows = 1 + 4 * asked[0]
        took = 0.5 * asked[0]
        controller.observe(done_round(asked, {0: 4 * asked[0]}, {0: 0}, rows, 0, took, float(rows)))
        seconds += rows + took
    assert seconds < 1.02 * 1000


def test_it_follows_the_text():
    """Off where the text is hard, on again where it is easy: near each stretch's best length."""
    machine = Machine(*SHAPES["dense"])

    def rates(i, seq):
        return (HARD if 600 <= i < 1600 else EASY)(i, seq)

    speed, asked, said = auto(machine, rates, 2600)
    fixed = max(machine.fixed(k, rates, 2600) for k in range(LIMIT + 1))
    assert speed > 1.05 * fixed
    for begin, end, least, most in ((30, 600, 3, 8), (700, 1600, 0, 0), (1900, 2600, 3, 8)):
        stretch = count(asked[begin:end])
        usual = sum(n for k, n in stretch.items() if least <= k <= most)
        assert usual > 0.5 * (end - begin), (begin, stretch)
    assert min(c.draft for c in said if 600 < c.round < 900) <= 1
    assert max(c.draft for c in said if c.round > 1600) >= 3


def test_what_costs_more_in_a_pause_is_noticed():
    """Verifying becomes dear (long context, another program): it goes off, and on again."""
    lost, noticed = [], 0
    for seed in range(24):
        now = [0]

        def verify(n, now=now):
            now[0] += 1
            return 1 + (1.0 if 500 < now[0] <= 1500 else 0.04) * (n - 1)

        machine = Machine(verify, SHAPES["dense"][1])
        _, asked, _ = auto(machine, falling(0.8), 3000, seed=seed)
        noticed += count(asked[800:1500])[0] > 400
        lost.append(count(asked[1500:])[0])
    assert noticed >= 19
    assert sum(lost) / 24 < 800  # to try costs half a percent of the time


@pytest.mark.parametrize("shape", ["dense", "tiles of four rows", "never pays"])
def test_a_machine_that_is_slow_for_a_while_changes_nothing(shape):
    """All prices 2.5 times as high for 200 rounds in 400: as near to the best as without."""
    machine = Machine(*SHAPES[shape], speed=lambda i: 2.5 if i // 200 % 2 else 1.0)
    rates = falling(0.8)
    fixed = max(machine.fixed(k, rates, 2000) for k in range(LIMIT + 1))
    assert auto(machine, rates, 2000)[0] > 0.95 * fixed


def test_one_slow_round_flips_nothing():
    """Whatever it hits, a round that takes a hundred times as long moves no settled length."""
    for at in range(100, 148, 3):

        def speed(i, at=at):
            return 100.0 if i == at else 1.0

        machine = Machine(*SHAPES["dense"], noise=0.0, slow_round=10**9, speed=speed)
        _, asked, _ = auto(machine, falling(0.7), 200)
        calm = Machine(*SHAPES["dense"], noise=0.0, slow_round=10**9)
        _, wanted, _ = auto(calm, falling(0.7), 200)
        settled, found = count(wanted[60:]), count(asked[at:])
        usual = settled.most_common(1)[0][0]
        assert sum(n for k, n in found.items() if abs(k - usual) <= 1) > 0.7 * (200 - at), at


@pytest.mark.parametrize("n_seqs", [2, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_sequences_that_share_a_round_get_lengths_of_their_own(shape, n_seqs):
    """Within 7 % of the best common length; where it pays, easier texts draft more."""
    machine = Machine(*SHAPES[shape])
    kinds = [falling(0.3 + 0.6 * seq / (n_seqs - 1)) for seq in range(n_seqs)]

    def rates(i, seq):
        return kinds[seq](i, seq)

    speed, asked, _ = auto(machine, rates, 1500, n_seqs=n_seqs)
    assert speed > 0.93 * machine.best(rates, n_seqs)
    if shape in ("dense", "plateau"):
        drafted = [sum(lengths[seq] for lengths in asked) for seq in range(n_seqs)]
        assert drafted == sorted(drafted)
        assert drafted[-1] > 1.5 * drafted[0]


@pytest.mark.parametrize("n_seqs", [4, 8, 16, 32])
@pytest.mark.parametrize("first", [0.3, 0.7, 0.95])
def test_many_sequences_lose_little_while_it_learns(n_seqs, first):
    """Within 2 % of the best common length over 300 rounds, of four texts within 4 %.

    Over the first 24 within 15 %; on average.
    """
    machine, rates = Machine(*TWO_CORES, slow_round=10**9), falling(first)
    best = machine.best(rates, n_seqs)
    found = [auto(machine, rates, 300, n_seqs=n_seqs, seed=seed)[0] for seed in range(6)]
    assert sum(found) / 6 > (0.96 if n_seqs == 4 else 0.97) * best
    first_turn = [auto(machine, rates, 24, n_seqs=n_seqs, seed=seed)[0] for seed in range(6)]
    assert sum(first_turn) / 6 > 0.85 * best


def wandering(seed):
    """A speed that stays for 5 to 60 rounds and then changes, mostly by less than a fifth."""
    rng, speeds = random.Random(seed), []
    while len(speeds) < 2000:
        speeds += [math.exp(rng.gauss(0, 0.15))] * rng.randrange(5, 60)
    return lambda i: speeds[i]


@pytest.mark.parametrize("n_seqs", [4, 16])
def test_a_machine_whose_speed_wanders_makes_no_length_look_cheap(n_seqs):
    """As fast as without drafts where they do not pay, whatever was measured in a fast moment."""
    shares = []
    for seed in range(8):
        machine, rates = Machine(*TWO_CORES, speed=wandering(seed)), falling(0.15)
        plain = machine.fixed(0, rates, 500, n_seqs=n_seqs, seed=seed)
        shares.append(auto(machine, rates, 500, n_seqs=n_seqs, seed=seed)[0] / plain)
    assert sum(shares) / 8 > 0.97


def test_where_plain_decoding_is_close_its_price_is_measured_again():
    """It was measured in two slow rounds; drafts cost a twentieth of the speed until that shows."""
    machine = Machine(
        lambda n: 1 + 0.08 * (n - 4), lambda s: 0.15 * len(s), noise=0.0, slow_round=10**9,
        read=0.0, speed=lambda i: 1.25 if i in (1, 3) else 1.0,
    )  # fmt: skip
    rates = falling(0.4)
    assert 0.9 < machine.expected(1, rates, 4) / machine.expected(0, rates, 4) < 0.97
    _, asked, _ = auto(machine, rates, 300, n_seqs=4)
    assert count(asked[80:300])[0] > 0.9 * 220 * 4


TRIED = (1.3, 1.8, 1.0) * 7
"""How much longer passes take in which a backend tries three ways to read weights in turn."""


def trying(begin=0):
    """Say how cold a pass is: after so many of its class (4, 8, more rows) three ways are tried."""
    seen = Counter()

    def cold(rows):
        kind = (rows > 4) + (rows > 8)
        seen[kind] += 1
        at = seen[kind] - 1 - begin
        return TRIED[at] if kind < 2 and 0 <= at < len(TRIED) else 0

    return cold


ROUGHLY_EVEN = (lambda n: 1 + 0.05 * max(n - 4, 0) + 0.06 * max(n - 8, 0), lambda s: 0.15 * len(s))
"""Four rows cost one, and a draft of each of four texts is worth a third of a pass."""


@pytest.mark.parametrize("first", [0.3, 0.5, 0.6, 0.8])
def test_what_a_backend_tries_out_meanwhile_flips_nothing(first):
    """Lengths are those of a machine without it, once prices are known."""
    machines = [
        Machine(*ROUGHLY_EVEN, noise=0.0, slow_round=10**9, read=0.0, cold=cold)
        for cold in (None, trying(60))
    ]
    (_, calm, _), (_, tried, _) = (auto(one, falling(first), 400, n_seqs=4) for one in machines)
    drafts = [sum(k > 0 for lengths in asked for k in lengths.values()) for asked in (calm, tried)]
    assert drafts[1] == pytest.approx(drafts[0], rel=0.1, abs=40)


def test_a_price_that_was_tried_out_is_forgotten_at_the_next_one():
    """Drafting seems hopeless while slow ways are tried; the first probe shows that it is not."""
    slow = iter([3.0] * 3)

    def cold(rows):
        return next(slow, 0) if rows > 4 else 0

    machine = Machine(*ROUGHLY_EVEN, noise=0.0, slow_round=10**9, read=0.0, cold=cold)
    _, asked, _ = auto(machine, falling(0.9), 150, n_seqs=4)
    assert count(asked[30:])[0] < 0.1 * 120 * 4


@pytest.mark.parametrize("at", range(5))
def test_a_slow_round_while_it_learns_is_forgotten(at):
    """One that takes five times as long is no price of anything, were it the only one measured."""
    machine = Machine(*TWO_CORES, slow_round=10**9, speed=lambda i: 5.0 if i == at else 1.0)
    speed = auto(machine, falling(0.15), 200, n_seqs=4)[0]
    assert speed > 0.93 * machine.fixed(0, falling(0.15), 200, n_seqs=4)


@pytest.mark.parametrize("n_seqs", [1, 4])
def test_short_texts_do_not_pay_for_reading_them(n_seqs):
    """A drafter that has to read a prompt for 40 passes begins only where that is repaid."""
    dense, rates = SHAPES["dense"], falling(0.5)
    machine = Machine(*dense, read=0.005, prompt=8000, slow_round=10**9)
    controller = make_controller(0.5)
    auto(Machine(*dense, read=0.005, prompt=0), rates, 300, controller, n_seqs=n_seqs)
    assert machine.expected(1, rates, n_seqs) > 1.1 * machine.expected(0, rates, n_seqs)
    n_read = []
    for n_rounds in [20] * 10 + [2000]:
        for seq in range(n_seqs):
            controller.forget(seq)
        _, asked, _ = auto(machine, rates, n_rounds, controller, n_seqs=n_seqs)
        n_read += [sum(any(lengths[seq] for lengths in asked) for seq in range(n_seqs))]
    assert sum(n_read[2:-1]) <= 1  # for a probe
    assert count(asked[1800:])[0] < 0.2 * 200 * n_seqs


@pytest.mark.parametrize("first", [0.05, 0.2, 0.4])
def test_a_few_good_drafts_make_nobody_read_many_texts(first):
    """One text liked a head; to read sixteen costs eight passes, and their drafts are bad."""
    shares = []
    for seed in range(1, 5):
        machine = Machine(*SHAPES["dense"], noise=0.02, slow_round=10**9, prompt=40, read=0.0133)
        controller, rates = make_controller(0.5), falling(first)
        auto(machine, falling(0.5), 4, controller, seed=seed)
        controller.forget(0)
        speed = auto(machine, rates, 128, controller, n_seqs=16, seed=seed)[0]
        shares.append(speed / machine.fixed(0, rates, 128, n_seqs=16, seed=seed))
    assert sum(shares) / 4 > 0.99


def test_how_long_texts_are_is_learnt():
    """To read a prompt for 10 passes is repaid within 64 rounds, but not within 20."""
    machine = Machine(*SHAPES["dense"], read=0.005, prompt=2000, slow_round=10**9)
    controller, rates, drafted = make_controller(0.5), falling(0.5), []
    for n_rounds in [64] * 10 + [20] * 20:
        _, asked, _ = auto(machine, rates, n_rounds, controller)
        controller.forget(0)
        drafted.append(any(lengths[0] for lengths in asked))
    assert all(drafted[:10])
    assert sum(drafted[20:]) <= 1  # for a probe


def test_what_is_no_hope_for_one_row_may_be_one_for_many():
    """After a step up at eight rows one row seems free; drafts of eight texts are measured on."""
    machine = Machine(
        lambda n: 1 + 0.02 * n + 0.5 * (n > 8), lambda s: 0.3 * len(s), noise=0.0, read=0.0,
        slow_round=10**9,
    )  # fmt: skip
    assert auto(machine, falling(1.0), 400, n_seqs=8)[0] > 0.9 * machine.best(falling(1.0), 8)


def test_a_new_text_begins_with_what_is_known_of_the_others():
    controller = make_controller()
    machine = Machine(*SHAPES["dense"])
    auto(machine, EASY, 500, controller)
    controller.forget(0)
    assert lengths_of(controller.choose({0: LIMIT}, {}))[0] >= 4
    controller = make_controller()
    auto(machine, HARD, 500, controller)
    controller.forget(0)
    drafts = [max(lengths.values()) for lengths in auto(machine, HARD, 40, controller)[1]]
    assert sum(k > 0 for k in drafts) < 16


def test_sequences_of_fixed_length_are_part_of_the_price():
    """Where four rows are taken by others, one more is beyond the tile."""
    controller = make_controller()
    verify, draft = SHAPES["tiles of four rows"]
    drafts = []
    for _ in range(400):
        asked = lengths_of(controller.choose({0: LIMIT}, {1: 2}))
        rows = 2 + sum(asked.values()) + 2
        controller.observe(
            done_round({**asked, 1: 2}, {**asked, 1: 2}, {0: 0, 1: 2}, rows, 0,
                  draft(steps([2, asked[0]])), verify(rows), 1e-6)
        )  # fmt: skip
        drafts.append(asked[0])
    assert drafts[200:].count(0) > 0.7 * 200


def test_nothing_to_draft_with_is_no_draft():
    controller = make_controller(limit=0)
    assert lengths_of(controller.choose({0: 5, 1: 7}, {})) == {0: 0, 1: 0}
    plain = {0: 0, 1: 0}
    assert controller.observe(done_round(plain, plain, plain, 2, 0, 0.0, 1.0, 0.1)) == []
    assert lengths_of(controller.choose({0: 5}, {})) == {0: 0}


def test_others_may_draft_where_nothing_can_be_chosen():
    """Drafts of fixed length teach prices to a controller that has no length to choose."""
    controller = make_controller(limit=0)
    for _ in range(20):
        asked = {**lengths_of(controller.choose({0: 5}, {1: 3})), 1: 3}
        assert asked == {0: 0, 1: 3}
        none = dict.fromkeys(asked, 0)
        assert controller.observe(done_round(asked, none, none, 2, 0, 0.5, 1.0, 0.1)) == []


def test_a_clock_that_stands_still_is_no_division_by_zero():
    controller = make_controller(0.5, limit=4)
    for _ in range(60):
        asked = lengths_of(controller.choose({0: 9}, {}))
        controller.observe(done_round(asked, asked, asked, 1 + asked[0], 0, 0.0, 0.0, 0.0))
    assert 0 <= asked[0] <= 4


def test_reading_a_prompt_is_no_price_of_a_draft():
    """A first draft waits for the drafter to read the text; so does one after a long pause."""
    controller = make_controller(0.5, limit=4)
    for i in range(40):
        asked = {0: 0} if 20 <= i < 30 else lengths_of(controller.choose({0: 4}, {}))
        asked = {0: 3} if i == 30 else asked
        seconds = 100.0 if i in (0, 30) else 0.2 * asked[0]
        controller.observe(done_round(asked, asked, {0: 0}, 1 + asked[0], 0, seconds, 1.0, 1e-6))
        priced = controller.describe()["drafters"][ROLE]["draft_seconds"]
        assert all(one < 1.0 for one in priced.values()), i


def test_reasons_are_sentences_with_numbers():
    """Exact prices give exact numbers."""
    said = auto(quiet("experts"), HARD, 200)[2]
    assert said[-1].reason.startswith("off: a pass of 2 rows costs 1.60 of one of 1, ")
    assert "drafting 1 costs 0.12, first draft accepted 0." in said[-1].reason
    assert said[-1].reason.endswith(" times as fast")
    last = auto(quiet("dense"), EASY, 200)[2][-1]
    k, rows, verify, draft = (
        last.draft,
        last.draft + 1,
        1 + 0.04 * last.draft,
        0.05 + 0.11 * last.draft,
    )
    assert k >= 3
    assert last.reason.startswith(
        f"drafting {k}: a pass of {rows} rows costs {verify:.2f} of one of 1, "
        f"drafting {k} costs {draft:.2f}, first draft accepted 0."
    )
    assert last.reason.endswith("times as fast as without")


def test_nobody_to_choose_for_after_rounds_in_which_nothing_was_found():
    """Of texts whose lengths are fixed there may be such rounds, too."""
    controller = make_controller(finds=True)
    none = {1: 0}
    for _ in range(11):
        assert controller.choose({}, none) == {}
        controller.observe(done_round(none, none, none, 1, 0, 0.0, 1.0))
    for limits in ({}, {0: 50}, {}, {0: 0}):
        assert controller.choose(limits, {}).keys() == limits.keys()


@searching(100)
@given(
    limit=st.integers(0, 9),
    finds=st.booleans(),
    rounds=st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 4), st.integers(0, 12), max_size=4),  # limits
            st.dictionaries(st.integers(5, 6), st.integers(0, 12), max_size=2),  # fixed
            st.sampled_from([0.0, 1e-9, 1e-3, 1.0, 1e6]),  # seconds
            st.integers(0, 9),  # accepted, made
            st.sampled_from([0, 0, 0, 40]),  # rows of prompts
            st.booleans(),  # whether the round raises
            st.integers(0, 20),  # who ends
        ),
        max_size=60,
    ),
)
def test_whatever_happens_lengths_are_within_their_limits(limit, finds, rounds):
    """And every sequence has one, and what is remembered is bounded."""
    controller = make_controller(0.5, limit=limit, finds=finds)
    assert isinstance(controller, LengthPolicy)
    for limits, fixed, seconds, luck, prompts, raises, ending in rounds:
        asked = lengths_of(controller.choose(limits, fixed))
        assert asked.keys() == limits.keys()
        assert all(0 <= k <= min(limits[seq], limit) for seq, k in asked.items())
        if raises:
            assert lengths_of(controller.choose(limits, fixed)) == asked
            continue
        asked = {**asked, **fixed}
        made = {seq: min(k, luck + 1) for seq, k in asked.items()}
        proposed = {
            seq: Proposed(n, n + seq, luck / 9 if finds else None)
            for seq, n in made.items()
            if n and seq in limits
        }
        kept = controller.keep(ROLE, proposed) if proposed else {}
        assert kept.keys() == proposed.keys()
        assert all(0 <= k <= made[seq] for seq, k in kept.items())
        made |= kept
        accepted = {seq: min(n, luck) for seq, n in made.items()}
        rows = len(asked) + sum(made.values()) + prompts
        for choice in controller.observe(
            done_round(asked, made, accepted, rows, prompts, seconds * luck, seconds, seconds / 7)
        ):
            assert 0 <= choice.draft <= limit
            assert choice.reason
        if ending < 5:
            controller.forget(ending)
    assert controller.describe()["rounds"] <= len(rounds)
