"""``draft="auto"`` on recorded rounds of real texts, in which lookup drafts."""

from statistics import mean

import pytest
from harness.replay import Fixed, Replay, places, recorded, replays, share_of_best

TASKS = list(recorded()["tasks"])


def test_six_tasks_were_recorded():
    """Where lookup finds much and where it finds little."""
    assert len(TASKS) == 6
    right = {task: mean(place.right for text in places(task) for place in text) for task in TASKS}
    assert right["JSON from text"] > 1.0 > 0.4 > right["free text, temperature 1"]


@pytest.mark.parametrize("task", TASKS)
def test_it_comes_near_the_best_fixed_length(task):
    """Within 13 % of it in each case, from the first text on, and within 9 % on average."""
    shares = {name: share_of_best(runs) for name, runs in replays(task).items()}
    assert min(shares.values()) > 0.87, shares
    assert mean(shares.values()) > 0.91, shares


def test_free_text_at_temperature_1_is_as_fast_as_plain_decoding():
    """Lookup finds little there, and proposes little: a fixed length costs hardly more."""
    runs = replays("free text, temperature 1")
    assert min(share_of_best(runs[name]) for name in runs) > 0.97
    assert share_of_best(runs["1"], make=lambda: Fixed(8)) > 0.97


def test_a_replay_is_the_text_whatever_is_drafted():
    """More tokens a pass, and as many in all."""

    class Counting(Fixed):
        def __init__(self, k):
            super().__init__(k)
            self.tokens = []

        def observe(self, done):
            self.tokens.append(1 + done.accepted[0])
            return []

    replay, plain, drafting = Replay(TASKS[1], only=0), Counting(0), Counting(3)
    for policy in (plain, drafting):
        replay.run(policy)
    assert sum(plain.tokens) == sum(drafting.tokens) == replay.n_tokens
    assert len(drafting.tokens) < 0.8 * len(plain.tokens) == 0.8 * replay.n_tokens
