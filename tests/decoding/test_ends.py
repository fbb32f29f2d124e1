"""Where texts end, when requests are cancelled, and what an exception leaves behind."""

import pytest
from harness.hashed import N_VOCAB, HashModel, Planted
from harness.scripted import SCRIPTS, Letters, Scripted, cross_of, plain, run
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore.decoding import Generator
from mtpcore.errors import BatchError, CapacityError
from mtpcore.runtime.batch import Batch
from mtpcore.sampling import Sampling
from mtpcore.testing.deliveries import intercept

PROMPT, SAMPLING = [3, 1, 4], Sampling(temperature=1.0, seed=8)
TRUTH = plain(PROMPT, SAMPLING, 40)
RIGHT = Scripted(SCRIPTS["right"], [[*PROMPT, *TRUTH]])


def generator_of(end_tokens=(), draft=4, drafter=None, **settings):
    model = HashModel()
    model.tokenizer = Letters(*end_tokens)
    script = Scripted(SCRIPTS["right"], [[*PROMPT, *TRUTH]])
    cross, backend = cross_of(drafter or script, model=model, **settings)
    return Generator(cross, sampling=SAMPLING, draft=draft), backend


def agree(request, generator, tokens):
    """Tokens, text, drafted flags, statistics and state of a first request end at one place."""
    assert request.tokens == tokens
    assert len(request.drafted) == len(tokens)
    stats, cross = generator.stats, generator.cross
    assert stats.tokens == len(tokens)
    assert stats.prompts == bool(tokens)
    assert stats.accepted == sum(stats.accepted_per_position) == sum(request.drafted)
    assert not generator.active
    assert cross.tokens(0) == []
    assert cross.pending(0) is None
    for role, context in cross.contexts.items():
        assert context.length(0) == 0
        assert context.runner.memory.pages.n_free == len(context.runner.memory.pages.uses)
        assert not [box.name for box in cross.links.inboxes(role).values() if box.length(0)]


@pytest.mark.parametrize("drafter", [None, "head"], ids=["script", "head"])
@pytest.mark.parametrize("draft", [0, 1, 4, 8])
@pytest.mark.parametrize("end", range(12))
def test_an_end_token_at_each_index_of_a_run(end, draft, drafter):
    """The first occurrence ends the text and is no part of it; ignore_eos passes over it."""
    token = TRUTH[end]
    generator, _ = generator_of([token], draft, drafter, skill=16)
    request = generator.add(PROMPT, max_tokens=30)
    run(generator)
    agree(request, generator, TRUTH[: TRUTH.index(token)])
    assert request.finish_reason == "end"
    assert request.text == Letters().text(request.tokens)
    request = generator.add(PROMPT, max_tokens=30, ignore_eos=True)
    run(generator)
    assert request.tokens == TRUTH[:30]
    assert request.finish_reason == "length"


@pytest.mark.parametrize("draft", [0, 4])
@pytest.mark.parametrize("end", range(1, 12))
def test_a_stop_text_at_each_index_of_a_run(end, draft):
    """The text is cut before it, the tokens end with the one that completed it."""
    letters = Letters().text(TRUTH)
    stop = letters[end : end + 2]
    generator, _ = generator_of((), draft)
    request = generator.add(PROMPT, max_tokens=30, stop=("never", stop))
    run(generator)
    at = letters.index(stop)
    agree(request, generator, TRUTH[: at + 2])
    assert request.text == letters[:at]
    assert (request.finish_reason, request.stopped_at) == ("stop", stop)


def test_a_single_stop_text_needs_no_list():
    """It is no sequence of letters."""
    letters = Letters().text(TRUTH)
    generator, _ = generator_of((), 4)
    request = generator.add(PROMPT, max_tokens=30, stop=letters[5:7])
    run(generator)
    assert request.text == letters[: letters.index(letters[5:7])]
    with pytest.raises(BatchError, match="none of them empty"):
        generator.add(PROMPT, stop="")


@pytest.mark.parametrize("draft", [0, 4])
def test_without_a_budget_the_text_goes_on_until_the_context_is_full(draft):
    generator, _ = generator_of((), draft, n_ctx=20)
    request = generator.add(PROMPT, max_tokens=None)
    run(generator)
    assert request.tokens == TRUTH[: 20 - len(PROMPT) + 1]
    assert request.finish_reason == "length"


@searching(60)
@given(
    draft=st.integers(0, 8),
    max_tokens=st.integers(0, 14),
    end=st.integers(0, 12),
    stop=st.integers(0, 12),
)
def test_the_earliest_end_wins(draft, max_tokens, end, stop):
    """End token, stop text and budget in one run: applied in the order of the tokens."""
    letters = Letters().text(TRUTH)
    generator, _ = generator_of([TRUTH[end]], draft)
    request = generator.add(PROMPT, max_tokens=max_tokens, stop=(letters[stop : stop + 2],))
    run(generator)
    wanted, reason, shown = [], "length", None
    for token in TRUTH[: max_tokens + 1]:
        if len(wanted) == max_tokens:
            break
        if token == TRUTH[end]:
            reason = "end"
            break
        wanted.append(token)
        at = Letters().text(wanted).find(letters[stop : stop + 2])
        if at >= 0:
            reason, shown = "stop", Letters().text(wanted)[:at]
            break
    agree(request, generator, wanted)
    assert request.finish_reason == reason
    assert request.text == (Letters().text(wanted) if shown is None else shown)


@pytest.mark.parametrize("k", range(9))
@pytest.mark.parametrize("room", range(11))
def test_drafts_end_where_the_context_does(room, k):
    """Any room left: the text fills it to the last place, and nothing is written past it."""
    n_ctx = len(PROMPT) + room
    for drafter in ("head", RIGHT):
        cross, _ = cross_of(drafter, n_ctx=n_ctx, skill=16)
        generator = Generator(cross, sampling=SAMPLING, draft=k)
        request = generator.add(PROMPT, max_tokens=100)
        run(generator)
        assert request.tokens == TRUTH[: room + 1]
        assert request.finish_reason == "length"
        cross.llm.process(Batch.of(PROMPT))
        assert len(cross.draft(0, k, SAMPLING)) == max(min(k, room - 1), 0)
        if not room:
            with pytest.raises((BatchError, CapacityError)):
                cross.verify({0: []}, SAMPLING)


def test_a_prompt_beyond_the_context_is_refused():
    cross, _ = cross_of("head", n_ctx=5)
    generator = Generator(cross, sampling=SAMPLING, draft=2)
    with pytest.raises(CapacityError):
        generator.add([1] * 6)
    for bad in ([], [N_VOCAB], [-1], [1.0], ["a"], [True], [2**40]):
        with pytest.raises(BatchError):
            generator.add(bad)
    for settings in (
        {"draft": -1},
        {"draft": 1.0},
        {"max_tokens": -1},
        {"max_tokens": True},
        {"stop": "ab"},
        {"stop": ["a"]},
        {"draft_sampler": "best"},
        {"p_min": 1.5},
        {"p_min": float("nan")},
        {"p_min": "0"},
    ):
        with pytest.raises(BatchError):
            generator.add([1], **settings)
    assert not generator.active


@pytest.mark.parametrize("rounds", range(6))
def test_cancelled_requests_free_their_sequence(rounds):
    """Before and after any round, queued or running: others and the next one are untouched."""
    cross, _ = cross_of("head", n_seq_max=2, skill=12)
    generator = Generator(cross, sampling=SAMPLING, draft=3)
    doomed, other, queued, last = (
        generator.add(p, max_tokens=20) for p in ([1, 2], PROMPT, [5], [6, 7])
    )
    for _ in range(rounds):
        generator.step()
    generator.cancel(queued)
    generator.cancel(doomed)
    generator.cancel(doomed)
    assert doomed.done
    kept = list(doomed.tokens)
    assert kept == plain([1, 2], SAMPLING, 20)[: len(kept)]
    run(generator)
    assert doomed.tokens == kept
    assert queued.tokens == []
    assert queued.finish_reason == "cancelled"
    assert other.tokens == TRUTH[:20]
    assert last.tokens == plain([6, 7], SAMPLING, 20)
    assert [cross.llm.length(s) for s in range(2)] == [0, 0]


def test_a_request_is_cancelled_by_its_own_generator():
    own, other = (Generator(cross_of("head", skill=12)[0], sampling=SAMPLING) for _ in range(2))
    running, stranger = other.add(PROMPT, max_tokens=5), own.add(PROMPT, max_tokens=5)
    other.step()
    own.step()
    with pytest.raises(BatchError, match="does not work on the request"):
        other.cancel(stranger)
    run(own)
    run(other)
    assert running.tokens == stranger.tokens == TRUTH[:5]
    other.cancel(stranger)  # it is done: nothing to do


@pytest.mark.parametrize("act", ["draft", "verify", "accept"])
def test_a_sequence_removed_after_any_act(act):
    """Remove, and the next text in that sequence is as in a fresh Cross: no row is left over."""
    cross, backend = cross_of("head", skill=12)
    cross.llm.process(Batch.of([9, 8, 7], seq=1))
    drafts = cross.draft(1, 4, SAMPLING)
    if act != "draft":
        cross.verify({1: drafts}, SAMPLING)
    if act == "accept":
        cross.accept(1)
    cross.remove(1)
    backend.pairs.clear()
    assert cross.pending(1) is None
    cross.llm.process(Batch.of(PROMPT, seq=1))
    fresh, other = cross_of("head", skill=12)
    fresh.llm.process(Batch.of(PROMPT, seq=1))
    assert cross.draft(1, 4, SAMPLING) == fresh.draft(1, 4, SAMPLING)
    assert backend.pairs == other.pairs
    assert cross.digest(1) == fresh.digest(1)


def test_a_reader_that_stops_reading():
    generator, _ = generator_of()
    tokens = generator.generate(PROMPT, max_tokens=30)
    assert [next(tokens) for _ in range(3)] == TRUTH[:3]
    tokens.close()
    assert not generator.active
    assert generator.cross.llm.length(0) == 0
    assert list(generator.generate(PROMPT, max_tokens=30)) == TRUTH[:30]


@pytest.mark.parametrize("n_read", [0, 1, 3])
def test_nothing_comes_of_a_reader_that_was_closed(n_read):
    """Neither tokens that its last round brought, nor a text that was not begun yet."""
    generator, _ = generator_of()
    tokens = generator.generate(PROMPT, max_tokens=30)
    assert [next(tokens) for _ in range(n_read)] == TRUTH[:n_read]
    tokens.close()
    assert list(tokens) == []
    assert not generator.active


@pytest.mark.parametrize("row", range(0, 40, 3))
def test_a_round_that_raises_can_be_stepped_again(row):
    """Whichever row fails, of a prompt, a draft or a verification: contents are as before."""
    cross, backend = cross_of("head", n_seq_max=3, n_batch=8, skill=12)
    generator = Generator(cross, sampling=SAMPLING, draft=3)
    made = [generator.add(p, max_tokens=12) for p in ([1, 2], PROMPT, [5])]
    backend.fail_at = row
    for _ in range(100):
        before = [r.tokens[:] for r in made]
        digests = None if backend.fail_at is None else backend.fail_at
        try:
            generator.step()
        except Planted:
            assert [r.tokens for r in made] == before
            assert digests is not None
            for seq, request in enumerate(made):
                tokens = cross.tokens(seq)
                assert [*request.prompt, *request.tokens][: len(tokens)] == tokens
    assert backend.fail_at is None
    assert [r.tokens for r in made] == [plain(r.prompt, SAMPLING, 12) for r in made]


def test_a_delivery_that_raises():
    generator, _ = generator_of()
    llm, calls = generator.cross.llm, []

    def watch(batch, output):
        calls.append(len(batch))
        if len(calls) % 2:
            raise Planted

    with intercept(llm, watch):
        request = generator.add(PROMPT, max_tokens=30)
        run(generator)
    assert request.tokens == TRUTH[:30]
    assert len(calls) > 6


CONTROL = sorted({*TRUTH[3:9:2]})


def spell(tokens):
    """The text with control tokens, and where each token begins in it; and the same without."""
    shown, hidden = Letters(control=CONTROL), Letters(control=CONTROL, special=False)
    return [(shown.push(token), hidden.push(token)) for token in tokens]


@searching(120)
@given(
    draft=st.integers(0, 8),
    special=st.booleans(),
    kind=st.sampled_from(["one", "with text", "text", "ids"]),
    at=st.integers(0, 14),
    length=st.integers(1, 9),
    end=st.integers(0, 30),
    ignore_eos=st.booleans(),
    max_tokens=st.integers(1, 20),
)
def test_control_tokens_and_ids_stop_at_one_place(
    draft, special, kind, at, length, end, ignore_eos, max_tokens
):
    """With and without drafts: tokens, text, log-probabilities and what is settled on the way."""
    pieces = spell(TRUTH)
    spelled, hidden = ("".join(piece) for piece in zip(*pieces, strict=True))
    stop = {
        "one": f"<{chr(ord('A') + CONTROL[at % len(CONTROL)])}>",
        "with text": "".join(piece for piece, _ in pieces[at : at + 3]),
        "text": (spelled if special else hidden)[at : at + length],
        "ids": (),
    }[kind]
    ids = [TRUTH[at]] if kind == "ids" else []
    model = HashModel()
    model.tokenizer = Letters(TRUTH[end], control=CONTROL)
    cross, _ = cross_of(Scripted(SCRIPTS["right"], [[*PROMPT, *TRUTH]]), model=model)
    generator = Generator(cross, sampling=SAMPLING, draft=draft)
    request = generator.add(
        PROMPT,
        max_tokens=max_tokens,
        stop=stop,
        stop_token_ids=ids,
        special=special,
        ignore_eos=ignore_eos,
        logprobs=0,
    )
    settled = []
    while generator.active:
        generator.step()
        settled.append(request.settled_text())
    by_spelling = special or any(text in stop for text in model.tokenizer.special_texts)
    wanted, reason, text = [], "length", ""
    for token in TRUTH[:max_tokens]:
        if (token == TRUTH[end] and not ignore_eos) or token in ids:
            reason = "end" if token == TRUTH[end] and not ignore_eos else "stop"
            break
        wanted.append(token)
        found = "".join(piece[not by_spelling] for piece in spell(wanted))
        if stop and stop in found:
            reason = "stop"
            break
    shown = spell(wanted)
    text = "".join(piece[not special] for piece in shown)
    if reason == "stop" and stop:
        place = "".join(piece[not by_spelling] for piece in shown).index(stop)
        if special or not by_spelling:
            text = text[:place]
        else:  # the text before the token, or the letter, with which the stop string begins
            ends = [sum(len(piece) for piece, _ in shown[:i]) for i in range(len(shown))]
            text = "".join(
                piece for (_, piece), begin in zip(shown, ends, strict=True) if begin < place
            )
    assert (request.tokens, request.finish_reason, request.text) == (wanted, reason, text)
    assert request.stopped_at == (stop if reason == "stop" and stop and not ids else None)
    assert len(request.logprobs) == len(wanted)
    assert all(text.startswith(part) for part in settled)
    assert cross.tokens(0) == []


def test_stop_tokens_that_are_none_are_refused():
    generator, _ = generator_of()
    for ids in ([N_VOCAB], [-1], "ab", [1.5], [True], [[1]]):
        with pytest.raises(BatchError):
            generator.add(PROMPT, stop_token_ids=ids)
    request = generator.add(PROMPT, max_tokens=30, stop_token_ids=TRUTH[4])
    run(generator)
    assert (request.tokens, request.finish_reason) == (TRUTH[: TRUTH.index(TRUTH[4])], "stop")
