"""Streams: what is given is settled, and letting go of one frees its sequence."""

import asyncio
import gc
import os
import subprocess
import sys

import pytest
from harness.demos import DEMOS
from harness.hashed import HashModel
from harness.scripted import SCRIPTS, Letters, Scripted, cross_of, plain
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import LM, BatchError, BusyError, Generator, MtpcoreError, Sampling

PROMPT, WARM = [3, 1, 4], Sampling(temperature=1.0, seed=8)
TRUTH = plain(PROMPT, WARM, 30)


def scripted_lm(draft=4, n_seq_max=2, script="right for three"):
    """An LM whose text is known, as letters, with drafts that are right for a while."""
    model = HashModel()
    model.tokenizer = Letters()
    proposer = Scripted(SCRIPTS[script], [[*PROMPT, *TRUTH]], None)
    cross, _ = cross_of(proposer, model=model, n_seq_max=n_seq_max)
    return LM.of(Generator(cross, sampling=WARM, draft=draft, prefix_cache="all"))


def held_lengths(lm):
    """How many sequences are somebody's."""
    return sum(owner is not None for owner in lm.generator.cross.owners._owners)


@pytest.mark.parametrize("draft", [0, 4])
@pytest.mark.parametrize("n", range(1, 5))
def test_text_that_a_stop_string_may_take_back_is_held(draft, n):
    """The stop string begins somewhere and goes on otherwise; then it comes."""
    letters = Letters().text(TRUTH)
    false_start = letters[6 : 6 + n] + "?"
    stop = letters[20:23]
    end = letters.find(stop)
    lm = scripted_lm(draft)
    given = ""
    for piece in lm.stream(PROMPT, max_tokens=30, stop=[false_start, stop]):
        given += piece
        request = next(iter(lm._engine._jobs), None)
        written = letters[:end] if request is None else request.request._written.text
        for one in (false_start, stop):
            for cut in range(1, len(one)):
                if request is not None and written.endswith(one[:cut]):
                    assert len(given) <= len(written) - cut
    assert given == letters[:end]


def test_drafted_says_which_tokens_were_accepted_drafts():
    lm = scripted_lm()
    pieces = list(lm.stream(PROMPT, max_tokens=13))
    assert [piece.drafted for piece in pieces] == [False, *[True, True, True, False] * 3]
    assert all(len(piece.tokens) == 1 for piece in pieces)
    assert not any(piece.drafted for piece in lm.stream(PROMPT, max_tokens=12, draft=0))


@pytest.mark.parametrize("family", DEMOS)
def test_pieces_are_whole_characters(lms, family):
    """Of bytes that are no characters at their place the last ones become U+FFFD at the end."""
    lm = lms[family]
    tokens = lm.model.tokenizer.encode("漢字 é")
    order = iter([*tokens, tokens[0]])

    def write(history, logits, order=order):
        logits[:] = 0.0
        logits[next(order)] = 9.0

    pieces = list(lm.stream([5], max_tokens=len(tokens) + 1, temperature=0, logits_processor=write))
    whole = lm.model.tokenizer.decode([*tokens, tokens[0]])
    assert "".join(pieces) == whole
    first_bytes = lm.model.tokenizer.token_bytes(tokens[0])
    assert "\ufffd" not in "".join(pieces[:-1]) or b"\xef\xbf\xbd" in first_bytes


@searching(20)
@given(
    family=st.sampled_from(DEMOS),
    at=st.integers(0, 12),
    how=st.sampled_from(["close", "del", "with", "raise"]),
    draft=st.integers(0, 4),
)
def test_letting_go_frees_the_sequence_and_changes_no_other_text(lms, family, at, how, draft):
    lm = lms[family]
    options = {"max_tokens": 20, "seed": 5, "draft": draft}
    wanted = lm.generate("import os\n", **options).text
    beside = lm.stream("import os\n", **options)
    text = next(beside, "")
    ended = lm.stream("class A:", **options)
    for _ in range(at):
        next(ended, None)
    if how == "close":
        ended.close()
        assert list(ended) == []
    elif how == "with":
        with ended:
            pass
    elif how == "raise":
        with pytest.raises(ZeroDivisionError), ended:
            _ = 1 / 0
    del ended
    gc.collect()
    assert lm.n_running == (beside.request.finish_reason is None)  # it may have ended, too
    assert text + "".join(beside) == wanted
    assert held_lengths(lm) == 0
    assert lm.generate("class A:", **options).text == lm.generate("class A:", **options).text


def test_a_stream_that_was_never_read_takes_nothing(lm):
    stream = lm.stream("class A:")
    assert lm.n_running == 0
    stream.close()
    assert list(stream) == []


@pytest.mark.parametrize("read", ["next(stream)", "asyncio.run(anext(stream))"])
def test_a_stream_that_is_left_at_the_end_of_a_program_says_nothing(read):
    method = "astream" if "asyncio" in read else "stream"
    program = "import asyncio, mtpcore; lm = mtpcore.LM('demo', n_ctx=64)\n"
    program += f"stream = lm.{method}('class A:', ignore_eos=True)\n{read}\n"
    path = os.pathsep.join(part for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_completion_is_there_at_the_end(lm):
    stream = lm.stream("class A:", max_tokens=5, ignore_eos=True)
    next(stream)
    with pytest.raises(BusyError, match="not finished"):
        _ = stream.completion
    list(stream)
    assert stream.completion.stats.tokens == 5


@pytest.mark.parametrize("at", [0, 1, 4])
def test_what_a_processor_raises_is_its_consumers(lm, at):
    """Others go on, and the round that it cut off is run again for them."""
    calls = []

    def fail(tokens, logits):
        calls.append(len(tokens))
        if len(calls) > at:
            raise ZeroDivisionError

    wanted = lm.generate("import os\n", max_tokens=20, seed=5).text
    beside, bad = lm.stream("import os\n", max_tokens=20, seed=5), None
    text = next(beside)
    bad = lm.stream("class A:", max_tokens=20, seed=5, ignore_eos=True, logits_processor=fail)
    given = []

    def read_both():
        nonlocal text
        for piece in bad:
            given.append(piece)
            text += next(beside, "")  # its rounds call the processor, too

    with pytest.raises(ZeroDivisionError):
        read_both()
    assert len(given) <= at
    assert text + "".join(beside) == wanted
    with pytest.raises(ZeroDivisionError):  # it is said again, not forgotten
        next(bad)
    assert lm.n_running == 0
    with pytest.raises(ZeroDivisionError):
        lm.generate(["import os\n", "class A:"], logits_processor=fail)
    assert lm.n_running == 0
    assert held_lengths(lm) == 0


def test_what_nobody_in_particular_raised_is_for_whoever_runs_the_round():
    lm = scripted_lm(script="right")

    class Broken(Exception):
        pass

    def broken(*_):
        raise Broken

    lm.generator.cross.drafters["draft"].propose = broken
    stream = lm.stream(PROMPT, max_tokens=9)
    next(stream)
    for _ in range(2):
        with pytest.raises(Broken):
            next(stream)
    del lm.generator.cross.drafters["draft"].propose
    assert "".join(stream) == Letters().text(TRUTH[1:9])


def test_a_round_calls_no_lm(lm):
    with pytest.raises(BusyError, match="in the middle of a round"):
        lm.generate("a", logits_processor=lambda *_: lm.generate("b"))
    assert lm.n_running == 0
    assert lm.generate("a", max_tokens=2, ignore_eos=True).stats.tokens == 2


def test_nothing_is_asked_after_close():
    lm = LM("demo", n_ctx=100, threads=1)
    stream, unread = lm.stream("class A:"), lm.stream("class B:")
    next(stream)
    lm.close()
    lm.close()
    acts = [
        lambda: lm.generate("a"),
        lambda: lm.generate([]),
        lambda: lm.stream("a"),
        lambda: lm.astream("a"),
        lambda: lm.chat([]),
        lambda: list(stream),
        lambda: list(unread),
    ]
    for act in acts:
        with pytest.raises(MtpcoreError, match="the LM is closed"):
            act()
    assert repr(lm).endswith("closed)")


@pytest.mark.parametrize("prompts", [["one", "two"], ("one",), [[1, 2], [3]]])
def test_a_stream_of_several_prompts_says_what_takes_them(lm, prompts):
    with pytest.raises(BatchError, match="a stream continues one prompt") as caught:
        lm.stream(prompts)
    assert "generate()" in caught.value.fix
    with pytest.raises(BatchError, match="at least one token"):
        lm.stream([])

    async def read():
        async for _ in lm.astream(prompts):
            pass

    with pytest.raises(BatchError, match="a stream continues one prompt"):
        asyncio.run(read())
