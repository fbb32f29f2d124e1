"""The text of a call depends on the call alone: not on drafts, other texts or the KV cache."""

import asyncio

import numpy as np
import pytest
from harness.demos import DEMOS
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

import mtpcore
from mtpcore import BatchError, CapacityError, Completion, Sampling, SamplingError
from mtpcore.sampling import USUAL

PROMPTS = [
    "def read_config(path):",
    "def read_config(path, mode):\n    ",
    "class Reader:\n    def __init__(self",
    "import os\n",
    "é ü 漢",
    [5, 6, 7, 8],
]
OPTIONS = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(0, 24),
        "temperature": st.sampled_from([0.0, 0.8, 1.5]),
        "seed": st.integers(0, 2**53),
    },
    optional={
        "top_p": st.sampled_from([0.5, 0.9]),
        "repetition_penalty": st.just(1.2),
        "logit_bias": st.just({203: 2.0}),
        "stop": st.sampled_from(["\n\n", ["self", "return", ":"]]),
        "ignore_eos": st.booleans(),
        "draft_sampler": st.sampled_from(["coupled", "argmax"]),
        "p_min": st.sampled_from([0.0, 0.4]),
    },
)
ANY_CALL = {
    "family": st.sampled_from(DEMOS),
    "prompt": st.sampled_from(PROMPTS),
    "options": OPTIONS,
}


def squeeze(tokens, logits):
    """Change every logit, by what stands in the text and how long it is."""
    logits *= np.float32(0.5 + len(tokens) % 3)
    logits[tokens[-1]] -= 4.0


@searching(30)
@given(**ANY_CALL, n=st.sampled_from([0, 3]), processed=st.booleans())
def test_drafts_change_neither_text_nor_logprobs(lms, family, prompt, options, n, processed):
    lm, processor = lms[family], squeeze if processed else None
    found = [
        lm.generate(prompt, draft=draft, logprobs=n, logits_processor=processor, **options)
        for draft in (0, 1, 2, 3, 4, "auto")
    ]
    plain = found[0]
    assert isinstance(plain, Completion)
    assert plain.stats.drafted == 0
    assert len(plain.logprobs) == len(plain.tokens)
    for one in found[1:]:
        assert (one.text, one.tokens, one.finish_reason) == (
            plain.text,
            plain.tokens,
            plain.finish_reason,
        )
        assert one.logprobs == plain.logprobs  # bit for bit


@searching(40)
@given(**ANY_CALL, draft=st.integers(0, 4))
def test_pieces_join_to_the_text(lms, family, prompt, options, draft):
    lm = lms[family]
    whole = lm.generate(prompt, draft=draft, logprobs=1, **options)
    stream = lm.stream(prompt, draft=draft, logprobs=1, **options)
    pieces = list(stream)
    assert "".join(pieces) == whole.text
    assert sum((piece.tokens for piece in pieces), ()) == whole.tokens
    assert sum((piece.logprobs for piece in pieces), ()) == whole.logprobs
    assert all(pieces[:-1])
    done = stream.completion
    assert (done.text, done.finish_reason) == (whole.text, whole.finish_reason)
    assert list(stream) == []


@searching(25)
@given(
    family=st.sampled_from(DEMOS),
    prompts=st.lists(st.sampled_from(PROMPTS), max_size=9),
    options=OPTIONS,
    draft=st.sampled_from([0, 2, "auto"]),
)
def test_many_prompts_are_answered_as_one_by_one(lms, family, prompts, options, draft):
    lm = lms[family]
    together = lm.generate(prompts, draft=draft, **options)
    apart = [lm.generate(prompt, draft=draft, **options) for prompt in prompts]
    assert [(one.text, one.tokens) for one in together] == [(one.text, one.tokens) for one in apart]
    assert lm.n_running == 0


def test_logprobs_are_the_log_softmax_of_the_models_own_logits():
    model = mtpcore.load_model("demo")
    prompt = model.tokenizer.encode(PROMPTS[0])
    with mtpcore.LM(model, draft=3) as lm:
        done = lm.generate(
            prompt, max_tokens=12, seed=2, logprobs=2, temperature=0.6, repetition_penalty=1.3
        )
    tokens = [*prompt, *done.tokens]
    out = mtpcore.Context(model).process(mtpcore.Batch.of(tokens, outputs="all"))
    for i, found in enumerate(done.logprobs):
        row = out.logits[len(prompt) + i - 1].astype(np.float64)
        row -= row.max()
        row -= np.log(np.exp(row).sum())
        assert found.token == tokens[len(prompt) + i]
        assert found.logprob == row[found.token]
        best = np.argsort(-row, kind="stable")[:2]
        assert found.top == tuple((int(token), row[token]) for token in best)


def test_completions_say_what_they_took(lm):
    done = lm.generate(PROMPTS[0], max_tokens=40, temperature=0.8, seed=7)
    stats = done.stats
    assert str(done) == done.text == lm.model.tokenizer.decode(done.tokens)
    assert done.logprobs is None
    assert done.sampling == Sampling(**USUAL | {"temperature": 0.8, "seed": 7})
    assert (stats.tokens, stats.prompt_tokens, stats.cached_tokens) == (40, 6, 0)
    assert stats.drafted > stats.accepted > 0
    assert stats.acceptance == stats.accepted / stats.drafted
    assert stats.passes == 39 - stats.accepted
    assert stats.seconds > 0
    assert lm.generate(PROMPTS[0], max_tokens=40, sampling=done.sampling).text == done.text
    assert lm.stats.tokens == 80


def test_a_seed_is_drawn_for_each_text(lm):
    one, other = lm.generate([PROMPTS[0]] * 2, max_tokens=30)
    assert one.sampling.seed != other.sampling.seed
    assert lm.generate(PROMPTS[0], max_tokens=30, seed=other.sampling.seed).text == other.text


def test_without_a_budget_a_text_ends_with_the_context(lm):
    done = lm.generate(PROMPTS[0], ignore_eos=True, seed=1)
    assert done.finish_reason == "length"
    assert len(done.tokens) == lm.n_ctx - 6 + 1


def test_token_ids_and_nothing_are_prompts(lm):
    ids = lm.model.tokenizer.encode(PROMPTS[0])
    wanted = lm.generate(PROMPTS[0], max_tokens=9, seed=1).text
    for prompt in (ids, tuple(ids), np.array(ids)):
        assert lm.generate(prompt, max_tokens=9, seed=1).text == wanted
    assert [one.text for one in lm.generate([ids, PROMPTS[0]], max_tokens=9, seed=1)] == [
        wanted
    ] * 2
    assert lm.generate([]) == []


@pytest.mark.parametrize("given", [None, {"prompt": "x"}])
def test_what_is_no_prompt_is_shown(lm, given):
    for method in (lm.generate, lm.stream):
        with pytest.raises(mtpcore.BatchError, match="prompt: integers are wanted") as caught:
            method(given)
        assert caught.value.got == repr(given)


@pytest.mark.parametrize("shown", [True, None])
def test_a_bar_shows_how_many_texts_are_finished(lm, capsys, shown):
    lm.generate(PROMPTS[:3], max_tokens=3, progress=shown)
    err = capsys.readouterr().err
    assert ("3/3" in err) == bool(shown)  # by default on a terminal only


def test_which_of_many_prompts_cannot_be_processed_is_told(lm):
    """None is begun; what is wrong with settings is no prompt's fault."""
    prompts = ["a"] * 50
    for i, bad, error, why in (
        (17, "x " * 400, CapacityError, "the prompt is longer than the context"),
        (49, [10**6], BatchError, "no such token"),
        (3, 3.5, BatchError, "prompt"),
    ):
        given = [*prompts[:i], bad, *prompts[i + 1 :]]
        with pytest.raises(error, match=rf"prompts\[{i}\] of 50: .*{why}"):
            lm.generate(given, max_tokens=1)
        with pytest.raises(error, match=rf"prompts\[{i}\] of 50: .*{why}"):
            asyncio.run(lm.agenerate(given, max_tokens=1))
    with pytest.raises(CapacityError) as raised:
        lm.generate("x " * 400)
    assert "prompts[" not in str(raised.value)
    with pytest.raises(SamplingError) as raised:
        lm.generate(prompts, top_p=7)
    assert "prompts[" not in str(raised.value)
    assert lm.n_running == 0


def test_log_probabilities_come_with_texts(lm):
    completion = lm.generate("import ", max_tokens=6, temperature=0, logprobs=3)
    assert "".join(found.text for found in completion.logprobs) == completion.text
    for found in completion.logprobs:
        texts = [lm.tokenizer.decode([token]) for token, _ in found.top]
        assert list(found.top_texts) == texts
        assert found.text == found.top_texts[0]  # the likeliest was chosen
    ends = [token for token in range(400) if lm.tokenizer.decode([token]) == ""]
    processor = lambda tokens, logits: logits.__setitem__(ends[0], 99)  # noqa: E731
    (found,) = lm.generate(
        "a", max_tokens=1, temperature=0, logprobs=0, ignore_eos=True, logits_processor=processor
    ).logprobs
    assert found.text == lm.tokenizer.decode(ends[:1], special=True) != ""


def test_tokens_of_a_prompt_are_as_likely_as_when_they_were_written(lm):
    """To the last bit, read in one piece here and one by one there, with drafts."""
    prompt = lm.tokenizer.encode("def read_config(path):")
    text = lm.generate(prompt, max_tokens=40, seed=3, ignore_eos=True, draft=3, logprobs=2)
    whole = [*prompt, *text.tokens]
    read = lm.generate(whole, max_tokens=0, prompt_logprobs=2)
    assert (read.text, read.finish_reason, read.stats.cached_tokens) == ("", "length", 0)
    assert len(read.prompt_logprobs) == len(whole) - 1
    assert read.prompt_logprobs[len(prompt) - 1 :] == text.logprobs
    assert text.prompt_logprobs is read.logprobs is None
    both = lm.generate(whole, max_tokens=4, seed=3, prompt_logprobs=2)
    assert both.prompt_logprobs == read.prompt_logprobs
    assert both.text == lm.generate(whole, max_tokens=4, seed=3, draft=0).text


def test_a_completion_is_shown_in_short(lm):
    completion = lm.generate("import ", max_tokens=60, seed=3, ignore_eos=True)
    shown = repr(completion)
    assert shown.startswith(f"Completion({completion.text[:60]!r}"[:50])
    assert shown.endswith(" 60 tokens, length)")
    assert len(shown) < 200


def test_texts_in_an_event_loop_are_those_without_one(lm):
    async def main():
        one, many = await asyncio.gather(
            lm.agenerate(PROMPTS[0], max_tokens=9, seed=1),
            lm.agenerate(PROMPTS[:3], max_tokens=9, seed=1, progress=False),
        )
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lm.agenerate("a", seed=1, ignore_eos=True), 0.001)
        return one.text, [each.text for each in many]

    wanted = [one.text for one in lm.generate(PROMPTS[:3], max_tokens=9, seed=1)]
    assert asyncio.run(main()) == (wanted[0], wanted)
    assert lm.n_running == 0
