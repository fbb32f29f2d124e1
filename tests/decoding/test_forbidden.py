"""Texts that are not to end too early, and strings that they never have."""

import numpy as np
import pytest
from harness.hashed import N_VOCAB, START, HashModel, advance, logits_of
from harness.scripted import (
    SCRIPTS,
    TREES,
    Letters,
    Scripted,
    cross_of,
    run,
    sampler_of,
    settings,
)
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

import mtpcore
from mtpcore import BatchError, Generator, PureProcessor, Sampling
from mtpcore.decoding.forbidden import ForbiddenTokens

WARM = Sampling(temperature=1.5, seed=8)
CONTROL = (3, 9)
strings = st.lists(st.text("abcdefgh<>D", min_size=1, max_size=3), max_size=4)


def defined(prompt, sampling, n, letters, *, ends, min_tokens, banned, special, after=()):
    """The text by definition, with the token that ends it: one row after the other."""
    state, tokens = START, []
    for token in prompt:
        state = advance(state, token)
    sampler = sampler_of(sampling)
    shown = Letters(control=letters.control, special=special)
    while len(tokens) < n and not (tokens and tokens[-1] in ends):
        history, logits = np.array([*prompt, *tokens], np.int32), logits_of(state).copy()
        for change in after:
            change(history, logits)
        for token in range(N_VOCAB):
            text, longer = shown.text(tokens), shown.text([*tokens, token])
            is_new = any(longer.count(s) > text.count(s) for s in banned)
            if is_new or (token in ends and len(tokens) < min_tokens):
                logits[token] = -np.inf
        if logits.max() == -np.inf:
            break
        tokens.append(sampler.choose(logits, history, len(prompt), len(history)))
        state = advance(state, tokens[-1])
    return tokens


def prefer_low(tokens, logits):
    logits -= np.arange(len(logits), dtype=np.float32) / 9


@searching(150)
@given(
    prompt=st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=8),
    sampling=settings(),
    ends=st.sets(st.integers(0, N_VOCAB - 1), max_size=3),
    stops=st.sets(st.integers(0, N_VOCAB - 1), max_size=2),
    ignore_eos=st.booleans(),
    special=st.booleans(),
    least=st.integers(0, 12),
    more=st.integers(1, 12),
    banned=strings,
    processor=st.sampled_from([None, prefer_low, PureProcessor(prefer_low)]),
    draft=st.integers(0, 6),
    script=st.sampled_from([*sorted(SCRIPTS), *sorted(TREES)]),
    n_batch=st.sampled_from([1, 3, 16]),
)
def test_texts_are_those_of_their_definition(
    prompt, sampling, ends, stops, ignore_eos, special, least, more, banned, processor, draft,
    script, n_batch,
):  # fmt: skip
    """With and without drafts, of a head and of scripts, beside a text that forbids nothing."""
    model = HashModel()
    model.tokenizer = letters = Letters(*ends, control=CONTROL)
    all_ends = stops | (set() if ignore_eos else ends)
    wanted = defined(
        *(prompt, sampling, least + more, letters),
        ends=all_ends,
        min_tokens=least,
        banned=banned,
        special=special,
        after=[processor] if processor else (),
    )
    scripted = Scripted((SCRIPTS | TREES)[script], [[*prompt, *wanted]])
    cross, _ = cross_of(scripted, "head", skill=8, model=model, n_seq_max=2, n_batch=n_batch)
    generator = Generator(cross)
    request = generator.add(
        prompt,
        sampling=sampling,
        draft=draft,
        max_tokens=least + more,
        min_tokens=least,
        banned_strings=banned,
        stop_token_ids=sorted(stops),
        ignore_eos=ignore_eos,
        special=special,
        logits_processor=processor,
    )
    beside = generator.add(prompt, sampling=WARM, max_tokens=10, draft=2, ignore_eos=True)
    run(generator)
    has_ended = bool(wanted) and wanted[-1] in all_ends
    assert request.tokens == (wanted[:-1] if has_ended else wanted)
    assert not any(string in request.text for string in banned)
    assert len(request.tokens) >= least or request.finish_reason == "no_token"
    alone = Generator(cross_of(model=model)[0])
    plain = alone.add(prompt, sampling=WARM, max_tokens=10, ignore_eos=True)
    run(alone)
    assert beside.tokens == plain.tokens


def test_stop_strings_count_from_the_least_length_on():
    """Those that are complete before are a part of the text, and do not stop it later."""
    model = HashModel()
    model.tokenizer = Letters()
    plain = Generator(cross_of(model=model)[0]).generate([1], sampling=WARM, max_tokens=14)
    truth = model.tokenizer.text(list(plain))
    for n in range(1, 14):
        for length in (1, 3):
            stop = [truth[0], truth[4 : 4 + length]]
            generator = Generator(cross_of("head", model=model)[0])
            request = generator.add(
                [1], sampling=WARM, max_tokens=14, min_tokens=n, stop=stop, draft=3
            )
            run(generator)
            ends = [
                end
                for end in range(n, 15)
                if any(truth[:end].endswith(s) and len(s) <= end for s in stop)
            ]
            assert len(request.tokens) == (ends[0] if ends else 14)
            assert (request.finish_reason == "stop") == bool(ends)


def test_strings_are_banned_however_they_are_spelled():
    """Of a real vocabulary: no token may complete one, and every other one may."""
    tokenizer = mtpcore.load_model("demo").tokenizer
    banned = ["self", "return x", "é\n", "    "]
    rules = ForbiddenTokens((), 0, banned, tokenizer, special=False)
    pieces = [tokenizer.shown_bytes(token) for token in range(tokenizer.n_vocab)]
    for text in ("", "s", "se", "sel", "retur", "the return", "caf", "  ", "   ", "return "):
        tokens = tokenizer.encode(text, add_special=False)
        before = b"".join(pieces[token] for token in tokens)
        found = set(rules.after(tokens).tolist())
        for token, piece in enumerate(pieces):
            after = before + piece
            begins = (
                after.find(s.encode(), max(len(before) - len(s.encode()) + 1, 0)) for s in banned
            )
            assert (token in found) == any(begin >= 0 for begin in begins), (text, piece)


def test_nothing_is_asked_of_the_logits_once_nothing_is_forbidden():
    generator = Generator(cross_of("head")[0], sampling=WARM)
    request = generator.add([1], max_tokens=9, min_tokens=3)
    seen = []
    while generator.active:
        seen.append((len(request.tokens), request.processor is None))
        generator.step()
    assert all((n >= 3) == is_over for n, is_over in seen)
    assert {is_over for _, is_over in seen} == {True, False}


@pytest.mark.parametrize(
    "given",
    [{"min_tokens": -1}, {"min_tokens": 1.5}, {"min_tokens": 9, "max_tokens": 8},
     {"banned_strings": [""]}, {"banned_strings": 3}, {"banned_strings": "a"}],
)  # fmt: skip
def test_what_cannot_be_is_refused(given):
    """Strings without a tokenizer among them."""
    with pytest.raises(BatchError):
        Generator(cross_of()[0]).add([1], **given)
