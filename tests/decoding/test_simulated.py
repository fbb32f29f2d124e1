"""Simulated acceptance, default draft lengths, and what statistics mean."""

import msgspec
import numpy as np
import pytest
from harness.hashed import HashBackend, HashModel
from harness.scripted import TREES
from harness.scripted import cross_of as scripted
from hypothesis import given
from hypothesis import strategies as st
from toy import HEAD

from mtpcore import Context, DraftTree, Generator, Sampling, TreeShape, link
from mtpcore.decoding import SimulatedAcceptance, default_length
from mtpcore.errors import SamplingError

PROMPT = [1, 2]
GREEDY = Sampling.greedy()


@given(st.integers(1, 8), st.floats(0, 1))
def test_rates_sum_up_to_the_length_asked_for(n, share):
    length = 1 + share * n
    made = SimulatedAcceptance.of_length(length, n)
    assert sum(made.rates) == pytest.approx(length - 1, abs=1e-9)
    assert all(rate == pytest.approx(made.rates[0] ** i) for i, rate in enumerate(made.rates, 1))


@pytest.mark.parametrize("length", [0.9, 4.1, float("nan")])
def test_impossible_lengths(length):
    with pytest.raises(SamplingError):
        SimulatedAcceptance.of_length(length, 3)


@pytest.mark.parametrize("rates", [(0.5, 0.6), (1.1,), (-0.1,), (float("nan"),)])
def test_impossible_rates(rates):
    with pytest.raises(SamplingError):
        SimulatedAcceptance(rates)


@pytest.fixture(scope="module")
def text():
    plain = Generator(Context(HashModel(), 4096, backend=HashBackend()), sampling=GREEDY)
    return list(plain.generate(PROMPT, max_tokens=3000))


@pytest.mark.parametrize("skill", [0, 8, 16], ids=["always wrong", "half right", "always right"])
@pytest.mark.parametrize(
    "tree", [None, TreeShape(depth=3, width=3, n_nodes=9)], ids=["chain", "tree"]
)
def test_drafts_are_accepted_at_these_rates_whatever_the_drafter_says(text, skill, tree):
    cross = link(Context(HashModel(), 4096, backend=HashBackend(skill=skill)), tree=tree)
    simulated = SimulatedAcceptance((0.6, 0.5, 0.0), seed=3)
    simulated.expect([*PROMPT, *text])
    simulated.install(cross)
    gen = Generator(cross, sampling=GREEDY, draft=3)
    assert list(gen.generate(PROMPT, max_tokens=3000)) == text  # the text is the target's
    rates = gen.stats.acceptance_per_position
    assert rates[0] == pytest.approx(0.6, abs=0.05)
    assert rates[1] == pytest.approx(0.5, abs=0.05)
    assert sum(rates[2:]) == 0
    assert gen.stats.tokens_per_pass == pytest.approx(2.1, abs=0.1)


@given(
    data=st.data(),
    truth=st.lists(st.integers(0, 5), min_size=6, max_size=6),
    parent=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    n_right=st.integers(0, 6),
)
def test_a_draft_is_right_as_far_as_is_due_and_no_further(data, truth, parent, n_right):
    """The text's way through any tree is as long as its first branch, and n nodes at most."""
    above = [min(p, i) - 1 for i, p in enumerate(parent)]
    above[0] = -1
    free = {p: data.draw(st.permutations(range(20))) for p in {*above}}
    tree = DraftTree([free[p].pop() for p in above], above)
    simulated = SimulatedAcceptance([1.0] * n_right + [0.0])
    simulated.expect([9, 9, *truth])
    made = simulated.correct(np.array([9, 9], np.int32), tree)
    assert made.parent.tolist() == tree.parent.tolist()
    at, reached, longest, first = -1, 0, 0, -1
    for token in truth:
        following = {int(made.tokens[c]): c for c in made.children(at)}
        if token not in following:
            break
        at, reached = following[token], reached + 1
    while children := tree.children(first):
        first, longest = children[0], longest + 1
    assert reached == min(n_right, longest, len(truth))


def test_drafts_of_a_text_that_is_not_known_stay_as_they_are():
    cross = link(Context(HashModel(), 512, backend=HashBackend(skill=16)))
    SimulatedAcceptance([0.0] * 8).install(cross)
    gen = Generator(cross, sampling=GREEDY, draft=3)
    list(gen.generate(PROMPT, max_tokens=100))
    assert gen.stats.acceptance > 0.9


def test_proposers_are_simulated_too(text):
    cross, _ = scripted(next(iter(TREES)))
    simulated = SimulatedAcceptance([0.0] * 8)
    simulated.install(cross)
    plain = list(Generator(cross, sampling=GREEDY).generate(PROMPT, max_tokens=20))
    simulated.expect([*PROMPT, *plain])
    gen = Generator(cross, sampling=GREEDY, draft=3)
    assert list(gen.generate(PROMPT, max_tokens=20)) == plain
    assert gen.stats.drafted > gen.stats.accepted == 0


@pytest.mark.parametrize(
    ("acceptance", "limit", "length"),
    [((0.6, 0.95), 8, 3), ((0.6, 0.95), 2, 2), ((0.0, 0.1), 8, 1), ((1.0, 1.0), 8, 8)],
)
def test_default_lengths_follow_the_declaration(acceptance, limit, length):
    assert (
        default_length(msgspec.structs.replace(HEAD, acceptance=acceptance, limit=limit)) == length
    )


def test_plain_decoding_makes_one_token_a_pass():
    gen = Generator(Context(HashModel(), 64, backend=HashBackend()), sampling=GREEDY)
    list(gen.generate([1], max_tokens=20))
    assert gen.stats.tokens_per_pass == 1
    assert gen.stats.tokens == 20
    assert gen.stats.prompts == 1
    assert gen.stats.choose_seconds > 0
