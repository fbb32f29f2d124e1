"""What asking for drafts takes besides drafts: Python, counted in bytecodes.

Weights go through the caches in every pass, so Python finds little of itself in them: on a model of
135 M parameters a thousand bytecodes of a round take 50 microseconds, a hundredth of a token.
"""

import pytest
from harness.bytecodes import count_bytecodes
from harness.head_replay import HeadReplay, head_controller
from harness.replay import Nothing, Replay, Traffic, make_controller, places, recorded

from mtpcore import Context, Generator, Proposer, Sampling, link, load_model
from mtpcore.decoding import Controller, Expectation, Proposed, Round

ROUNDS = 12


class Silent(Proposer):
    """Proposes nothing, as lookup mostly does in new text."""

    def propose(self, seq, tokens, k):
        return []


def bytecodes_of_a_round(n_seqs, draft):
    model = load_model("demo", mtp=False)
    cross = link(Context(model, 64, n_seq_max=n_seqs), Silent())
    generator = Generator(cross, sampling=Sampling.greedy(), draft=draft)
    for seq in range(n_seqs):
        generator.add([1, 2, 3, 4 + seq], max_tokens=60, ignore_eos=True)
    for _ in range(4):
        generator.step()
    return count_bytecodes(lambda: [generator.step() for _ in range(ROUNDS)]) / ROUNDS


def bytecodes_of_choosing(replay, controller):
    """What a round of a replay takes below ``decoding/lengths``."""
    rounds, learn = [], controller.observe
    controller.observe = lambda done: rounds.append(done) or learn(done)
    n = count_bytecodes(lambda: replay.run(controller), under="mtpcore/decoding/lengths")
    return n / len(rounds)


@pytest.mark.parametrize("n_seqs", [1, 4, 16])
def test_asking_in_vain_takes_little_more_than_a_round_without(n_seqs):
    """A tenth more bytecodes, of what is a tenth of a small model's round itself."""
    asking, plain = (bytecodes_of_a_round(n_seqs, draft) for draft in (3, 0))
    assert plain < asking < 1.1 * plain


@pytest.mark.parametrize(("n_seqs", "most"), [(1, 400), (4, 600), (16, 700)])
def test_choosing_lengths_takes_next_to_nothing_where_nothing_is_found(n_seqs, most):
    """Rounds without drafts are alike, and one of some is looked at."""
    replay = Replay(next(iter(recorded()["tasks"])), n_seqs)
    replay.texts, replay.n_tokens = [[Nothing] * 600], 600 * n_seqs
    controller = make_controller()
    n = count_bytecodes(lambda: replay.run(controller), under="mtpcore/decoding/lengths")
    assert n < most * 600


@pytest.mark.parametrize(("n_seqs", "most"), [(1, 2000), (4, 5500), (16, 11000)])
def test_choosing_lengths_takes_few_bytecodes_a_round(n_seqs, most):
    """In short answers of many kinds, where drafts are found in a fifth to half of the rounds."""
    for task in recorded()["tasks"]:
        places(task)
    assert bytecodes_of_choosing(Traffic(n_seqs, longest=48), make_controller()) < most


@pytest.mark.parametrize(("n_seqs", "most"), [(1, 4500), (4, 12000)])
def test_choosing_lengths_of_a_head_takes_few_bytecodes_a_round(n_seqs, most):
    """What is chosen stays for some rounds while nothing is tried."""
    replay = HeadReplay("greedy", n_seqs, 0.05)
    replay.n_tokens = 500 * n_seqs
    assert bytecodes_of_choosing(replay, head_controller()) < most


def bytecodes_beside_lookup(n_seqs, **heads):
    """What a round takes in which lookup finds a draft for one of the texts."""
    finds = Expectation(8, 0.5, 0.0, finds=True)
    controller, limits = Controller({"lookup": finds, **heads}), dict.fromkeys(range(n_seqs), 100)
    none = dict.fromkeys(limits, 0)

    def run():
        for i in range(200):
            seq, k = i % n_seqs, 1 + i % 7
            asks = "lookup" in controller.choose(limits, {})[seq]
            kept = controller.keep("lookup", {seq: Proposed(k, k, None)})[seq] if asks else 0
            made, rows = {**none, seq: kept}, n_seqs + kept
            makers = {seq: "lookup"} if kept else {}
            seconds = 0.001 + 0.001 * rows
            done = Round(made, made, made, rows, 0, 1e-5, seconds, 0.0, makers, {"lookup": 1e-5})
            controller.observe(done)
            controller.forget(n_seqs)  # others come and go, so that no plan stays

    run()
    return count_bytecodes(run, under="mtpcore/decoding/lengths") / 200


def test_a_head_that_nobody_shall_ask_takes_few_bytecodes_beside_lookup():
    """What many texts would gain by it is looked at in every fourth round."""
    alone = bytecodes_beside_lookup(16)
    assert bytecodes_beside_lookup(16, head=Expectation(6, 0.5, 20.0)) < alone + 12000
