"""Wherever a round is cut off, and however often: it is all done or not at all, and the texts are
those of an undisturbed run. ``scripts/interrupts`` tries many more places and signals."""

import os
from itertools import count

import pytest
from harness.interrupted import Alarms, Raiser, finish
from harness.requests import ROLES, Situation, disturb, draw, undisturbed
from harness.scripted import cross_of, plain

from mtpcore.decoding import Generator
from mtpcore.sampling import Sampling

N_PLACES = int(os.environ.get("MTPCORE_INTERRUPTS", "178"))
N_SIGNALS = int(os.environ.get("MTPCORE_SIGNALS", "120"))
SECONDS = 0.02  # between two signals at most: a round has to be shorter now and then
FIRST = int(os.environ.get("MTPCORE_INTERRUPTS_FIRST", "0"))


def test_an_exception_at_any_line_or_instruction():
    """In every role; the next ones in what that caused: taking back, finishing, going on."""
    bad, n_raised = {}, 0
    for seed in range(FIRST, FIRST + N_PLACES):
        role, places, how = draw(seed)
        try:
            n_raised += len(disturb(role, places, **how))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not places:
                raise
            bad[seed] = f"{role} {places} {how}: {error!r}"
    assert bad == {}
    assert n_raised >= N_PLACES


@pytest.mark.parametrize("role", ROLES)
def test_there_are_many_places(role):
    assert len(undisturbed(role, False)[2]) > 500


@pytest.mark.parametrize("role", ["head", "heads of their own", "fused taps", "recurrent layers"])
def test_signals_at_any_moment(role):
    """Texts are finished all the same, and no token is lost or given twice."""
    looks = undisturbed(role, False)[0]
    with Alarms(FIRST, SECONDS) as alarms:
        while alarms.n_raised < N_SIGNALS / 4:
            with alarms.silenced():
                one = Situation(role)
            for _ in range(10_000):
                try:
                    if finish(one.generator, patience=1):
                        break
                except KeyboardInterrupt:
                    continue
            else:
                raise AssertionError("requests do not finish")
            with alarms.silenced():
                assert one.look() == looks[-1]
                one.check_end()


def generator_of(n_seq_max=1, **settings):
    cross, _ = cross_of("head", skill=12, n_seq_max=n_seq_max)
    return Generator(cross, sampling=WARM, draft=3, **settings)


PROMPT, WARM = [3, 1, 4], Sampling(temperature=1.0, seed=8)
TRUTH = plain(PROMPT, WARM, 12)


def read(tokens):
    """Read on, however often that is interrupted."""
    found = []
    while True:
        try:
            for token in tokens:
                found.append(token)
        except KeyboardInterrupt:
            continue
        return found


@pytest.mark.parametrize("by_instruction", [False, True], ids=["lines", "instructions"])
def test_reading_goes_on_where_it_was_interrupted(by_instruction):
    """At places all over a text: each token is given once."""
    for place in count(0, 601 if by_instruction else 41):
        raiser = Raiser(place, by_instruction=by_instruction)
        tokens = generator_of().generate(PROMPT, max_tokens=12)
        found = []
        try:
            with raiser:
                for token in tokens:
                    found.append(token)
        except KeyboardInterrupt:
            found += read(tokens)
        assert found == TRUTH, raiser.raised
        if not raiser.raised:
            break


def test_signals_while_reading():
    with Alarms(1, SECONDS) as alarms:
        while alarms.n_raised < N_SIGNALS / 6:
            with alarms.silenced():
                tokens = generator_of().generate(PROMPT, max_tokens=12)
            found = read(tokens)
            with alarms.silenced():
                assert found == TRUTH


def test_an_interrupted_reader_gives_way():
    """Its request rests, and gives up its sequence where another one needs it."""
    generator = generator_of()
    first = generator.generate(PROMPT, max_tokens=12)
    assert next(first) == TRUTH[0]
    generator.lengths.choose = None
    with pytest.raises(KeyboardInterrupt), Raiser(40):
        list(first)
    assert not generator.active
    generator.step()  # nothing to do
    assert list(generator.generate(PROMPT, max_tokens=12)) == TRUTH
    with pytest.raises(Exception, match="was given up"):
        list(first)
    assert list(generator.generate(PROMPT, max_tokens=3)) == TRUTH[:3]


def test_whoever_lets_go_of_a_reader_frees_its_sequence():
    generator = generator_of()
    tokens = generator.generate(PROMPT, max_tokens=12)
    next(tokens)
    del tokens
    assert not generator.active
    assert generator.cross.llm.length(0) == 0
