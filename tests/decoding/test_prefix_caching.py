"""Prefix caching: what a prompt has in common with an earlier text is not processed again."""

import pytest
from harness.hashed import N_VOCAB, Planted
from harness.scripted import cross_of, plain, run, settings
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import BatchError, CapacityError, Context, Generator, Sampling, link, load_model
from mtpcore.runtime.batch import Batch

PROMPT, WARM = [3, 1, 4], Sampling(temperature=1.0, seed=8)
N_CTX = 90


@st.composite
def conversations(draw):
    """Requests whose prompts mostly go on from an earlier text, cut somewhere."""
    wanted = []
    tokens = st.integers(0, N_VOCAB - 1)
    for _ in range(draw(st.integers(1, 7))):
        prompt = draw(st.lists(tokens, min_size=1, max_size=6))
        if wanted and draw(st.integers(0, 3)):
            earlier = draw(st.sampled_from(wanted))
            text = [*earlier["prompt"], *earlier["text"]]
            prompt = [*text[: draw(st.integers(0, len(text)))], *prompt][: N_CTX - 12]
        sampling, n = draw(settings()), draw(st.integers(1, 12))
        text = plain(prompt, sampling, n)
        wanted.append({"prompt": prompt, "sampling": sampling, "max_tokens": n, "text": text})
    return wanted


def fresh_digest(cross, seq, n_seq_max):
    """The digest of a sequence in a Cross that only saw its tokens."""
    fresh = cross_of("head", skill=12, n_ctx=N_CTX, n_seq_max=n_seq_max)[0]
    if tokens := cross.tokens(seq):
        fresh.llm.process(Batch.of(tokens, seq=seq))
    return fresh.digest(seq)


@searching(150)
@given(
    wanted=conversations(),
    draft=st.integers(0, 4),
    n_seq_max=st.integers(1, 3),
    at_once=st.integers(1, 3),
    fails=st.sampled_from([None, 5, 21]),
)
def test_texts_are_those_without_it(wanted, draft, n_seq_max, at_once, fails):
    cross, backend = cross_of("head", skill=12, n_ctx=N_CTX, n_seq_max=n_seq_max)
    generator = Generator(cross, draft=draft, prefix_caching=True)
    backend.fail_at = fails
    made = []
    for begin in range(0, len(wanted), at_once):
        for one in wanted[begin : begin + at_once]:
            made.append(
                generator.add(one["prompt"], sampling=one["sampling"], max_tokens=one["max_tokens"])
            )
        while generator.active:
            try:
                generator.step()
            except Planted:
                continue
    assert [request.tokens for request in made] == [one["text"] for one in wanted]
    assert generator.stats.cached_tokens == sum(request.n_cached for request in made)
    assert generator.stats.prompt_tokens == sum(len(one["prompt"]) for one in wanted)
    assert cross.owners.describe() == []
    backend.fail_at = None  # the texts may have been shorter than that
    for seq in range(n_seq_max):
        assert cross.digest(seq) == fresh_digest(cross, seq, n_seq_max)


def cached(n_seq_max=1, **options):
    cross = cross_of("head", skill=12, n_ctx=N_CTX, n_seq_max=n_seq_max)[0]
    return Generator(cross, sampling=WARM, prefix_caching=True, **options)


def write(generator, prompt, n=6):
    request = generator.add(prompt, max_tokens=n)
    run(generator)
    return request


def test_a_text_that_goes_on_is_processed_from_there():
    generator = cached()
    first = write(generator, PROMPT)
    text = [*PROMPT, *first.tokens]
    second = write(generator, [*text, 7])
    assert second.n_cached == len(text) - 1  # the last token was chosen, and never processed
    assert write(generator, [*text[:5], 9, 9]).n_cached == 5
    assert write(generator, text[:5]).n_cached == 4  # the last one's logits are needed
    assert write(generator, [0, 0]).n_cached == 0


def test_the_sequence_is_taken_with_which_least_is_lost():
    generator = cached(2)
    long = [n % N_VOCAB for n in range(3, 33)]
    write(generator, long)
    write(generator, [3, 4, 1])  # two tokens in common: not worth the long one
    assert write(generator, [*long, 1]).n_cached == 30
    assert write(generator, [3, 4, 1, 2]).n_cached == 3


def test_a_cancelled_text_is_kept_as_far_as_it_was_processed():
    generator = cached()
    request = generator.add(PROMPT, max_tokens=20)
    for _ in range(3):
        generator.step()
    generator.cancel(request)
    text = [*PROMPT, *request.tokens]
    assert write(generator, [*text, 1]).n_cached == len(text) - 1


def test_sequences_processed_by_hand_stay():
    generator = cached()
    cross = generator.cross
    write(generator, PROMPT)
    cross.remove(0)  # it is free all the same
    assert write(generator, PROMPT).n_cached == 0
    cross.llm.process(Batch.of([1, 2], seq=0, pos=cross.llm.length(0)))
    with pytest.raises(CapacityError, match="by hand"):
        write(generator, PROMPT)
    assert cross.tokens(0)[-2:] == [1, 2]


def test_generators_with_and_without_it_take_turns():
    one = cached()
    other = Generator(one.cross, sampling=WARM)
    write(one, PROMPT)
    assert write(other, [*PROMPT, 5]).n_cached == 3
    assert one.cross.llm.runner.lengths == [0]
    assert write(one, PROMPT).n_cached == 0


def test_without_it_nothing_is_kept():
    generator = Generator(cached().cross, sampling=WARM)
    write(generator, PROMPT)
    assert generator.cross.llm.runner.lengths == [0]


@pytest.mark.parametrize(("name", "kept"), [("demo", 20), ("demo:mimo2", 0)])
def test_a_window_that_keeps_too_little_begins_anew(name, kept):
    """The text is that of a new generator, whatever memory a model has."""
    model, texts = load_model(name), {}
    for caching in (False, True):
        generator = Generator(
            link(Context(model, 400)), sampling=WARM, draft=2, prefix_caching=caching
        )
        first = generator.add([*range(5, 205)], max_tokens=60, ignore_eos=True)
        run(generator)
        second = generator.add([*range(5, 205), *first.tokens[:50], 7], max_tokens=12)
        run(generator)
        third = generator.add([*range(5, 25), 7, 8], max_tokens=12)
        run(generator)
        texts[caching] = [one.tokens for one in (first, second, third)]
    assert texts[True] == texts[False]
    assert (second.n_cached, third.n_cached) == (250, kept)


def test_whether_to_is_yes_or_no():
    with pytest.raises(BatchError, match="prefix_caching"):
        Generator(cached().cross, prefix_caching=3)
