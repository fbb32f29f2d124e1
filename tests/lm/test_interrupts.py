"""Ctrl-C at any moment: no piece is lost or given twice, and no sequence stays taken."""

import os
import random
import signal
import sys
import threading
from contextlib import suppress
from itertools import chain

import pytest
from harness.hashed import HashModel
from harness.interrupted import Alarms, Raiser
from harness.scripted import SCRIPTS, Letters, Scripted, cross_of, plain

from mtpcore import LM, Generator, Sampling
from mtpcore.lm.engine import Engine

PROMPTS = [[3, 1, 4], [3, 1, 4, 1, 5], [2]]
WARM = Sampling(temperature=1.0, seed=8)
TRUTHS = [plain(prompt, WARM, 14) for prompt in PROMPTS]
N_SIGNALS = int(os.environ.get("MTPCORE_SIGNALS", "120"))
TEXTS = [Letters().text(truth) for truth in TRUTHS]


@pytest.fixture(scope="module")
def lm():
    model = HashModel()
    model.tokenizer = Letters()
    texts = [[*prompt, *truth] for prompt, truth in zip(PROMPTS, TRUTHS, strict=True)]
    proposer = Scripted(SCRIPTS["right for three"], texts, None)
    cross, _ = cross_of(proposer, model=model, n_seq_max=2)
    return LM.of(Generator(cross, sampling=WARM, draft=4, prefix_cache="all"))


def interrupted(function, place):
    """Call a function with an interrupt at a place; return what it returned, or None, and both."""
    with Raiser(place, by_instruction=True) as raiser:
        try:
            return function(), raiser.raised
        except KeyboardInterrupt:
            return None, raiser.raised


def check_free(lm):
    assert lm.n_running == 0
    assert lm.generator.cross.owners.describe() == []
    assert lm.generate(PROMPTS[1], max_tokens=14).text == TEXTS[1]


def test_generate_ends_its_texts(lm):
    n_raised = 0
    for seed in range(60):
        place = int(random.Random(seed).expovariate(1 / 15000))
        found, raised = interrupted(lambda: lm.generate(PROMPTS, max_tokens=14), place)
        n_raised += bool(raised)
        if found is not None:
            assert [one.text for one in found] == TEXTS
        check_free(lm)
    assert n_raised > 30


def test_a_stream_goes_on_where_it_was(lm):
    n_raised = 0
    for seed in range(12):
        chance = random.Random(seed)
        stream, pieces, misses = lm.stream(PROMPTS[0], max_tokens=14), [], 0
        while misses < 400:
            place = chance.randrange(chance.choice([80, 80, 1500, 20000]))
            piece, raised = interrupted(lambda s=stream: next(s, "end"), place)
            n_raised += bool(raised)
            if piece == "end":
                break
            if piece is not None:
                pieces.append(piece)
            misses += 1
        assert "".join(pieces) == TEXTS[0]
        assert sum((piece.tokens for piece in pieces), ()) == tuple(TRUTHS[0])
        check_free(lm)
    assert n_raised > 30


def read_interrupted(lm, place):
    """Read a stream, with an interrupt at a line, to its end; return the raiser and all pieces."""
    stream, pieces = lm.stream(PROMPTS[0], max_tokens=14), []
    with Raiser(place) as raiser, suppress(KeyboardInterrupt):
        pieces.extend(stream)
    pieces.extend(stream)
    return raiser, pieces


def test_a_text_that_was_read_to_its_end_does_not_run(lm):
    """Wherever the round was cut off that brought the end."""
    for _ in range(3):  # until it is all in the cache
        raiser, _ = read_interrupted(lm, 10**9)
    seen = (places for (file, _), places in raiser.seen().items() if file == "/lm/engine.py")
    places = sorted(chain(*seen))[-60:]
    n_raised = 0
    for place in places:
        raiser, pieces = read_interrupted(lm, place)
        n_raised += bool(raiser.raised)
        assert "".join(pieces) == TEXTS[0]
        assert lm.n_running == 0
    assert n_raised > 30


def test_a_text_that_waits_for_its_first_round_counts_as_running(lm, monkeypatch):
    def interrupt(engine):
        raise KeyboardInterrupt

    stream = lm.stream(PROMPTS[0], max_tokens=14)
    with monkeypatch.context() as patched:
        patched.setattr(Engine, "advance", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(stream)
    assert lm.n_running == 1
    assert "".join(stream) == TEXTS[0]
    check_free(lm)


def test_a_stream_that_is_closed_or_let_go_of_frees_its_sequence(lm):
    n_raised = 0
    for seed in range(60):
        chance = random.Random(seed)
        stream = lm.stream(PROMPTS[0], max_tokens=14)
        for _ in range(seed % 3):
            next(stream)
        _, raised = interrupted(lambda s=stream: next(s), chance.randrange(12000))
        n_raised += bool(raised)
        interrupted(stream.close, chance.randrange(300))
        del stream
        check_free(lm)
    assert n_raised > 20


def test_a_signal_that_is_handled_late_sends_no_other():
    """One that came as the block ended; the next would meet the handler of before, and kill."""
    with Alarms(1, 100) as alarms:
        pass
    alarms._raise(signal.SIGALRM, None)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_signals_leave_no_other_thread_waiting(lm):
    """At any moment, also while this thread waits for another one's round, or tells of its own."""
    found, is_over = [], threading.Event()

    def read_on():
        while not is_over.is_set():
            found.append("".join(lm.stream(PROMPTS[1], max_tokens=14)))

    reader = threading.Thread(target=read_on, daemon=True)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with Alarms(1, 0.002) as alarms:
            reader.start()
            while alarms.n_raised < N_SIGNALS and reader.is_alive():
                with alarms.silenced():
                    stream, pieces = lm.stream(PROMPTS[0], max_tokens=14), []
                while True:
                    try:
                        for piece in stream:
                            pieces.append(piece)
                        break
                    except KeyboardInterrupt:
                        continue
                with alarms.silenced():
                    assert "".join(pieces) == TEXTS[0]
        is_over.set()
        reader.join(60)
        assert not reader.is_alive()
    finally:
        sys.setswitchinterval(interval)
    assert found == [TEXTS[1]] * len(found)
    check_free(lm)
