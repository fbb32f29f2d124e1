"""``draft="auto"`` on recorded rounds of real texts, in which lookup drafts."""

from statistics import mean

import pytest
from harness.head_replay import HeadReplay, head_controller, head_places
from harness.replay import (
    Fixed,
    Nothing,
    Replay,
    Traffic,
    make_controller,
    places,
    recorded,
    replays,
    share_of_best,
)

TASKS = list(recorded()["tasks"])


def test_six_tasks_were_recorded():
    """Where lookup finds much and where it finds little."""
    assert len(TASKS) == 6
    right = {task: mean(place.right for text in places(task) for place in text) for task in TASKS}
    assert right["JSON from text"] > 1.0 > 0.4 > right["free text, temperature 1"]


@pytest.mark.parametrize("task", TASKS)
def test_it_comes_near_the_best_fixed_length(task):
    """At least 0.965 of it in each case, from the first text on, and 0.98 on average."""
    seeds = (1, 2, 3, 4)
    shares = {name: share_of_best(runs, seeds) for name, runs in replays(task).items()}
    assert min(shares.values()) > 0.965, shares
    assert mean(shares.values()) > 0.98, shares


def test_free_text_at_temperature_1_is_as_fast_as_plain_decoding():
    """Lookup finds little there."""
    runs = replays("free text, temperature 1")
    assert min(share_of_best(runs[name]) for name in runs) > 0.97


@pytest.mark.parametrize("n_seqs", [1, 4, 16])
def test_short_answers_of_many_kinds_are_as_fast_as_with_the_best_length(n_seqs):
    """Each server begins with nothing learnt: there are 30 to 1,000 rounds in all."""
    assert share_of_best([Traffic(n_seqs)], range(4)) > 0.97


@pytest.mark.parametrize("n_seqs", [1, 4, 16])
@pytest.mark.parametrize("ask_seconds", [15e-6, 1e-3, 8e-3])
def test_asking_in_vain_costs_little(ask_seconds, n_seqs):
    """It is as fast as plain decoding, within 1 %; who takes as long as a pass is asked rarely."""
    replay = Replay(TASKS[0], n_seqs)
    replay.ask_seconds = ask_seconds
    replay.texts = [[Nothing] * 4000]
    replay.n_tokens = 4000 * n_seqs
    assert replay.run(make_controller()) > 0.99 * replay.run(Fixed(0))


class Sure:
    """A place where lookup finds what follows."""

    made = right = 8
    confidence = 0.95


@pytest.mark.parametrize("n_seqs", [1, 4, 16])
def test_who_seldom_finds_is_asked_as_long_as_that_pays(n_seqs):
    """The price of asking many texts together is that of all, and no text pays it alone."""
    replay = Replay(TASKS[0], n_seqs)
    replay.texts = [[*[Nothing] * 30, *[Sure] * 9] * 20]
    replay.n_tokens = 600 * n_seqs
    assert share_of_best([replay], range(3)) > 0.97


def test_a_replay_is_the_text_whatever_is_drafted():
    """More tokens a pass, and as many in all."""

    class Counting(Fixed):
        def __init__(self, k):
            super().__init__(k)
            self.tokens = []

        def observe(self, done):
            self.tokens += [1 + n for n in done.accepted.values()]
            return []

    replay, plain, drafting = Replay(TASKS[1], only=0), Counting(0), Counting(3)
    for policy in (plain, drafting):
        replay.run(policy)
    assert sum(plain.tokens) == sum(drafting.tokens) == replay.n_tokens
    assert len(drafting.tokens) < 0.8 * len(plain.tokens) == 0.8 * replay.n_tokens


def test_a_head_was_recorded():
    """Six texts greedily, where a head knows how sure it is, and six at temperature 1."""
    for sampling in ("greedy", "temperature 1"):
        places = [place for text in head_places(sampling) for place in text]
        assert len(places) == 744
        assert 0.65 < mean(place.right > 0 for place in places) < 0.8


@pytest.mark.parametrize("sampling", ["greedy", "temperature 1"])
@pytest.mark.parametrize(("n_seqs", "cost"), [(1, 0.05), (1, 0.2), (4, 0.2)])
def test_a_head_comes_near_the_best_fixed_length(sampling, n_seqs, cost):
    """Where drafts pay, and where they do not."""
    runs = [HeadReplay(sampling, n_seqs, cost)]
    assert share_of_best(runs, range(2), head_controller) > 0.97
