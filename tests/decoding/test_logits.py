"""Log-probabilities and logits processors: the same rows, in the same order, whatever drafts."""

import math

import numpy as np
import pytest
from harness.hashed import N_VOCAB, START, HashModel, Planted, advance, logits_of
from harness.scripted import (
    SCRIPTS,
    TREES,
    Letters,
    Scripted,
    cross_of,
    plain,
    run,
    sampler_of,
    settings,
)
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import BatchError, Generator, Sampling
from mtpcore.decoding import Request
from mtpcore.decoding.logprobs import TokenLogprobs, log_softmax
from mtpcore.decoding.options import complete_options
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.prompt import Prompt, Rows

PROMPT, WARM = [3, 1, 4], Sampling(temperature=1.0, seed=8)


def forbid_last(tokens, logits):
    """Allow no token twice in a row, and like the next one."""
    logits[tokens[-1]] = -np.inf
    logits[(int(tokens[-1]) + 1) % N_VOCAB] += 1.0


def nothing(tokens, logits):
    """Change nothing."""


def write_plainly(prompt, sampling, n, processor):
    """The hashed model's text by definition; also what the processor saw, and the raw logits."""
    state, tokens, calls, rows = START, [], [], []
    for token in prompt:
        state = advance(state, token)
    sampler = sampler_of(sampling)
    for _ in range(n):
        history = np.asarray([*prompt, *tokens], np.int32)
        logits = logits_of(state).copy()
        calls.append((history.tolist(), logits.tolist()))
        rows.append(logits.copy())
        processor(history, logits)
        tokens.append(sampler.choose(logits, history, len(prompt), len(history)))
        state = advance(state, tokens[-1])
    return tokens, calls, rows


def watching(processor, calls):
    def watch(tokens, logits):
        calls.append((tokens.tolist(), logits.tolist()))
        processor(tokens, logits)
        tokens[:] = 0  # they are a copy

    return watch


@searching(150)
@given(
    prompt=st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=12),
    sampling=settings(),
    draft=st.integers(0, 6),
    n=st.integers(1, 16),
    kind=st.sampled_from(["head", "script", "both"]),
    script=st.sampled_from([*sorted(SCRIPTS), *sorted(TREES)]),
    skill=st.integers(0, 16),
    processor=st.sampled_from([forbid_last, nothing]),
    n_logprobs=st.sampled_from([None, 0, 3, N_VOCAB + 5]),
    n_batch=st.sampled_from([2, 16]),
)
def test_rows_are_seen_as_plain_decoding_sees_them(
    prompt, sampling, draft, n, kind, script, skill, processor, n_logprobs, n_batch
):
    truth, wanted, rows = write_plainly(prompt, sampling, n, processor)
    other = plain([5, 2], WARM, 9)
    scripted = Scripted((SCRIPTS | TREES)[script], [[*prompt, *truth], [5, 2, *other]], None)
    roles = {"head": ["head"], "script": [scripted], "both": [scripted, "head"]}[kind]
    cross, _ = cross_of(*roles, skill=skill, n_ctx=90, n_seq_max=2, n_batch=n_batch)
    generator, calls = Generator(cross, draft=draft), []
    request = generator.add(
        prompt,
        sampling=sampling,
        max_tokens=n,
        logprobs=n_logprobs,
        logits_processor=watching(processor, calls),
    )
    beside = generator.add([5, 2], sampling=WARM, max_tokens=9)
    run(generator)
    assert (request.tokens, beside.tokens) == (truth, other)
    assert calls == wanted
    described = [] if n_logprobs is None else list(zip(rows, truth, strict=True))
    assert request.logprobs == [
        TokenLogprobs.of(log_softmax(row), token, n_logprobs) for row, token in described
    ]
    assert beside.logprobs == []


@pytest.mark.parametrize("end", ["stop", "end", "length"])
def test_no_row_after_the_end_of_a_text_is_seen(end):
    """Right drafts go on after it, and are verified all the same."""
    truth = plain(PROMPT, WARM, 12)
    letters, calls = Letters(*truth[5:6] if end == "end" else ()), {}
    for draft in (0, 8):
        model = HashModel()
        model.tokenizer = letters
        scripted = Scripted(SCRIPTS["right"], [[*PROMPT, *truth]], None)
        cross, _ = cross_of(scripted, model=model)
        generator, seen = Generator(cross, sampling=WARM, draft=draft), []
        generator.add(
            PROMPT,
            max_tokens=6 if end == "length" else 12,
            stop=[letters.text(truth[4:6])] if end == "stop" else (),
            logits_processor=watching(nothing, seen),
        )
        run(generator)
        calls[draft] = seen
    assert calls[0] == calls[8]
    assert 0 < len(calls[0]) <= 6


def test_the_processor_runs_before_bias_and_penalties():
    """It sees the model's own logits, and what it forbids no bias brings back."""
    sampling = Sampling(temperature=0.0, seed=1, logit_bias={5: 30.0}, repetition_penalty=1.3)
    assert plain(PROMPT, sampling, 4) == [5] * 4
    seen = []

    def forbid(tokens, logits):
        seen.append(logits[5])
        logits[5] = -np.inf

    cross = cross_of("head", skill=12)[0]
    generator = Generator(cross, sampling=sampling, draft=3)
    request = generator.add(PROMPT, max_tokens=4, logits_processor=forbid)
    run(generator)
    assert 5 not in request.tokens
    state = START
    for token in PROMPT:
        state = advance(state, token)
    assert seen[0] == logits_of(state)[5]


@pytest.mark.parametrize("at", range(6))
def test_what_a_processor_raises_undoes_the_round(at):
    truth, *_ = write_plainly(PROMPT, WARM, 8, forbid_last)
    cross = cross_of("head", skill=14, n_seq_max=2)[0]
    generator, left = Generator(cross, sampling=WARM, draft=3), [at]

    def fail(tokens, logits):
        left[0] -= 1
        if left[0] == -1:
            logits[:] = np.nan
            raise Planted
        forbid_last(tokens, logits)

    request = generator.add(PROMPT, max_tokens=8, logits_processor=fail, logprobs=1)
    beside = generator.add([5, 2], max_tokens=8)

    def look():
        digests = [cross.digest(seq) for seq in range(2)]
        return (
            digests,
            [*request.tokens],
            [*request.logprobs],
            [*beside.tokens],
            request.n_prefilled,
        )

    raised = 0
    while generator.active:
        before = look()
        try:
            generator.step()
        except Planted:
            raised += 1
            assert look() == before
    assert raised == 1
    assert request.tokens == truth
    assert beside.tokens == plain([5, 2], WARM, 8)
    assert len(request.logprobs) == 8


def test_a_processor_makes_no_act_of_its_own():
    cross = cross_of("head", skill=12)[0]
    generator = Generator(cross, sampling=WARM, draft=2)
    generator.add(PROMPT, logits_processor=lambda tokens, logits: generator.step())
    with pytest.raises(RuntimeError, match="running"):
        generator.step()


def test_verify_and_pending_take_processors():
    cross = cross_of("head", skill=12)[0]
    truth, *_ = write_plainly(PROMPT, WARM, 5, forbid_last)
    cross.llm.process(Batch.of(PROMPT))
    assert cross.pending(0, WARM, forbid_last) == truth[0]
    verdict = cross.verify({0: truth[1:3]}, WARM, processors={0: forbid_last})[0]
    assert verdict.tokens == tuple(truth[1:4])
    for act in (
        lambda: cross.verify({0: []}, WARM, processors={0: 3}),
        lambda: cross.verify({0: []}, WARM, processors=forbid_last),
        lambda: cross.pending(0, WARM, 3),
    ):
        with pytest.raises(BatchError):
            act()


@pytest.mark.parametrize(
    "given",
    [{"logprobs": -1}, {"logprobs": True}, {"prompt_logprobs": -1}, {"logits_processor": 3}],
)
def test_what_is_neither_number_nor_callable_is_refused(given):
    generator = Generator(cross_of("head", skill=12)[0])
    with pytest.raises(BatchError):
        generator.add(PROMPT, **given)


ODD = [math.nan, math.inf, -math.inf, 0.0, 1.0, 1e30]


@given(st.lists(st.sampled_from(ODD) | st.floats(-90, 90, width=32), min_size=1, max_size=9))
def test_log_softmax_of_any_row_is_a_distribution(row):
    found = log_softmax(np.array(row, np.float32))
    assert not np.isnan(found).any()
    assert math.isclose(np.exp(found).sum(), 1.0, rel_tol=1e-12)


def test_ties_among_the_likeliest_go_to_the_lowest_id():
    row = log_softmax(np.array([1, 3, 3, 0, 3], np.float32))
    assert [token for token, _ in TokenLogprobs.of(row, 0, 2).top] == [1, 2]
    assert [token for token, _ in TokenLogprobs.of(row, 0, 9).top] == [1, 2, 4, 0, 3]
    assert TokenLogprobs.of(row, 3, 0).top == ()


@pytest.mark.parametrize("n_batch", [2, 16])
def test_a_prompt_alone_is_asked_for_by_a_text_of_no_tokens(n_batch, monkeypatch):
    """And few of its logits are there at once."""
    monkeypatch.setattr("mtpcore.decoding.rounds._MOST_LOGITS", 3 * N_VOCAB)
    prompt = [*range(1, 11)]
    cross, _ = cross_of("head", n_ctx=90, n_seq_max=1, n_batch=n_batch)
    generator, n_rounds = Generator(cross, draft=3), 0
    request = generator.add(prompt, max_tokens=0, prompt_logprobs=1)
    nothing = generator.add(prompt, max_tokens=0)
    assert (request.done, nothing.finish_reason) == (False, "length")
    while generator.active:
        generator.step()
        n_rounds += 1
    assert n_rounds == -(-10 // min(n_batch, 3))
    assert (request.tokens, request.finish_reason) == ([], "length")
    assert [found.token for found in request.prompt_logprobs] == prompt[1:]
    assert cross.owners.describe() == []


@pytest.mark.parametrize("draft", [0, 4])
@pytest.mark.parametrize("kind", ["end", "id", "length"])
def test_the_token_that_ends_a_text_is_told_apart(kind, draft):
    truth = plain(PROMPT, WARM, 6)
    at = next(i for i in range(2, 6) if truth[i] not in truth[:i])
    model = HashModel()
    model.tokenizer = Letters(*truth[at : at + 1] if kind == "end" else ())
    cross, _ = cross_of(Scripted(SCRIPTS["right"], [[*PROMPT, *truth]], None), model=model)
    generator = Generator(cross, sampling=WARM, draft=draft)
    request = generator.add(
        PROMPT,
        max_tokens=at if kind == "length" else 6,
        stop_token_ids=truth[at] if kind == "id" else (),
        logprobs=2,
    )
    run(generator)
    assert request.tokens == [found.token for found in request.logprobs] == truth[:at]
    end = request.end_logprobs
    assert (None if end is None else end.token) == (None if kind == "length" else truth[at])


def test_prompts_that_are_no_text_predict_nothing():
    own = {"max_tokens": 3, "draft": 0, "draft_sampler": "coupled", "p_min": 0.0, "sampling": WARM}
    options = complete_options({"prompt_logprobs": 0}, own)
    rows = Prompt([3], Rows(np.zeros((2, 4), np.float32)))
    for prompt, more in ((rows, {}), (PROMPT, {"start_token": 0})):
        with pytest.raises(BatchError) as caught:
            Request(prompt, options, tokenizer=None, **more)
        assert caught.value.where == "prompt_logprobs"
