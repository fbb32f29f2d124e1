"""The prefix cache: what a prompt has in common with other texts is not processed again."""

import pytest
from harness import hybrid_family
from harness.hashed import N_VOCAB, START, Planted, advance, logits_of
from harness.requests import connect, seeing, unconnected
from harness.scripted import cross_of, plain, run, settings
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import BatchError, CapacityError, Context, Generator, Sampling, link, load_model
from mtpcore.decoding.logprobs import TokenLogprobs, log_softmax
from mtpcore.memory import PAGE
from mtpcore.runtime.batch import Batch

PROMPT, WARM = [3, 1, 4], Sampling(temperature=1.0, seed=8)
N_CTX = 200
SIZES = [None, 0, 100, 64 * PAGE, 9 * 64 * PAGE, "all"]
"""Bytes: the hashed model's roles take 64 for a place, each."""
LONG = [[(n * n + base) % N_VOCAB for n in range(140)] for base in range(2)]
"""Texts that prompts begin with; more than two pages."""


@st.composite
def conversations(draw):
    """Requests whose prompts mostly go on from a long text or an earlier one, cut somewhere."""
    wanted = []
    tokens = st.integers(0, N_VOCAB - 1)
    for _ in range(draw(st.integers(1, 9))):
        prompt = draw(st.lists(tokens, min_size=1, max_size=6))
        earlier = [*LONG, *([*one["prompt"], *one["text"]] for one in wanted)]
        if draw(st.integers(0, 4)):
            text = draw(st.sampled_from(earlier))
            prompt = [*text[: draw(st.integers(0, len(text)))], *prompt][: N_CTX - 12]
        sampling, n = draw(settings()), draw(st.integers(1, 12))
        text = plain(prompt, sampling, n)
        logprobs = draw(st.sampled_from([None, None, 0, 2]))
        wanted.append(
            {"prompt": prompt, "sampling": sampling, "max_tokens": n, "prompt_logprobs": logprobs}
            | {"text": text}
        )
    return wanted


def likely(prompt, n_logprobs):
    """How likely the hashed model finds each token of a prompt but the first, by definition."""
    if n_logprobs is None:
        return []
    states = [advance(START, prompt[0])]
    for token in prompt[1:-1]:
        states.append(advance(states[-1], token))
    return [
        TokenLogprobs.of(log_softmax(logits_of(state)), token, n_logprobs)
        for state, token in zip(states, prompt[1:], strict=False)
    ]


def fresh_digest(cross, seq, n_seq_max):
    """The digest of a sequence in a Cross that only saw its tokens."""
    fresh = cross_of("head", skill=12, n_ctx=N_CTX, n_seq_max=n_seq_max)[0]
    if tokens := cross.tokens(seq):
        fresh.llm.process(Batch.of(tokens, seq=seq))
    return fresh.digest(seq)


def kept_bytes(cross):
    """The bytes that finished texts take, by the pages: those of no running request."""
    free = [seq for seq in cross.owners.free() if cross.llm.runner.lengths[seq]]
    used = 0
    for context in cross.contexts.values():
        tables = context.runner.memory.pages
        pages = [
            set(tables.tables[seq][: -(-int(tables.length[seq]) // PAGE)].tolist())
            for seq in range(len(tables.tables))
        ]
        own = set().union(*(pages[seq] for seq in free))
        used += len(own.difference(*(p for seq, p in enumerate(pages) if seq not in free)))
    return used * PAGE * 64


@searching(150)
@given(
    wanted=conversations(),
    draft=st.integers(0, 4),
    n_seq_max=st.integers(1, 4),
    at_once=st.integers(1, 6),
    fails=st.sampled_from([None, 5, 21, 150]),
    sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=2),
)
def test_texts_are_those_without_it(wanted, draft, n_seq_max, at_once, fails, sizes):
    """Generators of one Cross share what is kept, and each forgets what is more than its size."""
    cross, backend = cross_of("head", skill=12, n_ctx=N_CTX, n_seq_max=n_seq_max)
    generators = [Generator(cross, draft=draft, prefix_cache=size) for size in sizes]
    backend.fail_at = fails
    made = []
    for begin in range(0, len(wanted), at_once):
        for i, one in enumerate(wanted[begin : begin + at_once]):
            options = {name: value for name, value in one.items() if name != "text"}
            request = generators[i % len(generators)].request(**options)
            generators[i % len(generators)].queue(request)
            made.append(request)
        while any(generator.active for generator in generators):
            for generator, size in zip(generators, sizes, strict=True):
                n_done = sum(request.done for request in made)
                try:
                    if generator.active:
                        generator.step()
                except (Planted, CapacityError):  # the other generator has all sequences
                    continue
                if sum(request.done for request in made) > n_done and isinstance(size, int):
                    assert kept_bytes(cross) <= size
    assert [request.tokens for request in made] == [one["text"] for one in wanted]
    for request, one in zip(made, wanted, strict=True):
        assert request.prompt_logprobs == likely(one["prompt"], one["prompt_logprobs"])
        assert not (request.n_cached and one["prompt_logprobs"] is not None)
    stats = [generator.stats for generator in generators]
    cached = [request.n_cached for request in made]
    assert sum(one.cached_tokens for one in stats) == sum(cached)
    assert sum(one.cached_prompts for one in stats) == sum(n > 0 for n in cached)
    assert sum(one.prompt_tokens for one in stats) == sum(len(one["prompt"]) for one in wanted)
    assert cross.owners.describe() == []
    backend.fail_at = None  # the texts may have been shorter than that
    for seq in range(n_seq_max):
        assert cross.digest(seq) == fresh_digest(cross, seq, n_seq_max)


def cached(n_seq_max=1, size="all", **options):
    cross = cross_of("head", skill=12, n_ctx=N_CTX, n_seq_max=n_seq_max)[0]
    return Generator(cross, sampling=WARM, prefix_cache=size, **options)


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
    assert write(other, [*PROMPT, 5]).n_cached == 0
    assert one.cross.llm.runner.lengths == [0]
    assert write(one, PROMPT).n_cached == 0


def test_a_running_text_is_shared():
    """Two texts go on from the first's prompt while it is written, drafts included."""
    generator = cached(3, draft=2)
    first = generator.add(LONG[0], max_tokens=30)
    while len(first.tokens) < 10:
        generator.step()
    second = generator.add([*LONG[0][:100], 1, 2], max_tokens=30)
    generator.step()
    assert (first.seq, second.seq, second.n_cached) == (0, 1, 100)
    third = generator.add([*LONG[0][:100], 1, 3], max_tokens=30)
    generator.step()
    assert (third.seq, third.n_cached) == (2, 101)
    cross = generator.cross
    for context in cross.contexts.values():
        tables = context.runner.memory.pages.tables
        assert tables[0][0] == tables[1][0] == tables[2][0]
    run(generator)
    texts = [plain(request.prompt, WARM, 30) for request in (first, second, third)]
    assert [request.tokens for request in (first, second, third)] == texts
    assert (generator.stats.cached_prompts, generator.stats.cached_tokens) == (2, 201)
    assert [cross.digest(seq) for seq in range(3)] == [fresh_digest(cross, s, 3) for s in range(3)]


def test_what_several_prompts_begin_with_is_processed_once():
    """They wait until the first one has read it; other requests do not."""
    generator = cached(4)
    requests = [generator.add([*LONG[0], n], max_tokens=4) for n in range(3)]
    other = generator.add(PROMPT, max_tokens=4)
    generator.step()
    assert [one.seq for one in (*requests, other)] == [0, None, None, 1]
    run(generator)
    assert [one.n_cached for one in requests] == [0, len(LONG[0]), len(LONG[0])]
    assert [one.tokens for one in requests] == [plain(one.prompt, WARM, 4) for one in requests]


def test_nobody_waits_for_a_request_that_rests():
    """Its reader was interrupted: it may never go on."""
    generator = cached(2)
    first = generator.add(LONG[0], max_tokens=4)
    generator.step()
    first.resting = True
    second = generator.add([*LONG[0], 1], max_tokens=4)
    run(generator)
    assert second.tokens == plain(second.prompt, WARM, 4)


def test_the_text_that_was_used_longest_ago_is_forgotten_first():
    """Three fit; the third use of the first text makes the second one the oldest."""
    generator = cached(3)
    a, b, c, d = ([base, *LONG[0][:40]] for base in range(4))
    for prompt in (a, b, c, a):
        write(generator, [*prompt, 1], 1)
    write(generator, [*d, 1], 1)
    found = {}
    for name, prompt in (("a", a), ("c", c), ("d", d)):
        found[name] = write(generator, [*prompt, 1], 1).n_cached
    assert found == {"a": 41, "c": 41, "d": 41}
    assert write(generator, [*b, 1], 1).n_cached == 0


def test_to_share_a_text_is_to_use_it():
    """The third text begins as the first one does, so the second one is the oldest."""
    generator = cached(3)
    a, b = [0, *LONG[0][:40]], [1, *LONG[0][:40]]
    for prompt in (a, b, [*a[:20], 9], [2, 2, 2]):
        write(generator, [*prompt, 1], 1)
    assert write(generator, [*a, 1, 3], 1).n_cached == len(a) + 1
    assert write(generator, [*b, 1, 3], 1).n_cached == 0


@pytest.mark.parametrize(("n_texts", "n_left"), [(0, 0), (1, 1), (2, 2), (9, 3)])
def test_as_many_bytes_are_kept_as_there_may_be(n_texts, n_left):
    """A text of 47 tokens takes a page of both roles; the newest ones stay."""
    generator = cached(3, n_texts * 2 * PAGE * 64, draft=2)
    texts = [[base, *LONG[0][:40], 1] for base in range(3)]
    for text in texts:
        write(generator, text)
    assert kept_bytes(generator.cross) == n_left * 2 * PAGE * 64
    held = sorted(generator.cross.tokens(seq)[:1] for seq in range(3))
    assert held == sorted([[]] * (3 - n_left) + [text[:1] for text in texts[3 - n_left :]])


@pytest.mark.parametrize("connects_first", [True, False])
def test_texts_that_see_different_pictures_share_nothing(connects_first):
    """The same tokens are not the same text where the target reads other rows beside them."""
    texts = []
    for size in (None, "all"):
        cross = seeing() if connects_first else unconnected()
        generator = Generator(cross, sampling=WARM, prefix_cache=size)
        if not connects_first:
            connect(cross)
        for _ in range(3):
            request = generator.add(PROMPT, max_tokens=10)
            run(generator)
            texts.append(request.tokens)
    assert texts[:3] == texts[3:]
    assert len({*map(tuple, texts)}) == 3


def test_shared_pages_count_once():
    """Two finished texts with two pages in common take four in each role."""
    generator = cached(2, 4 * 2 * PAGE * 64, draft=2)
    write(generator, [*LONG[0], 1])
    assert write(generator, [*LONG[0], 2]).n_cached == len(LONG[0])
    assert kept_bytes(generator.cross) == 4 * 2 * PAGE * 64
    assert all(generator.cross.llm.runner.lengths)


def test_pages_that_a_running_text_needs_do_not_count():
    """A finished text shares two of its three pages with one that is still written."""
    generator = cached(2, 2 * PAGE * 64, draft=2)
    running = generator.add(LONG[0], max_tokens=40)
    while len(running.tokens) < 2:  # drafters have read the prompt, too
        generator.step()
    other = generator.add([*LONG[0], 1], max_tokens=4)
    while not other.done:
        generator.step()
    assert not running.done
    assert generator.cross.llm.runner.lengths[1] > len(LONG[0])
    assert kept_bytes(generator.cross) == 2 * PAGE * 64


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    """Recurrent layers keep states of few places."""
    return hybrid_family.subject(tmp_path_factory.mktemp("hybrid")).model


@pytest.mark.parametrize("name", ["demo", "demo:mimo2", "hybrid"])
def test_prompts_part_where_the_first_one_stops(name, hybrid):
    """The first one is read as far as it is shared before it goes on, whatever memory there is."""
    model = hybrid if name == "hybrid" else load_model(name)
    text, texts = [n % model.hparams.n_vocab for n in range(5, 305)], {}
    prompts = [text, [*text[:100], 7], [*text[:170], 7, *text[:20]]]
    for size in ("all", None):
        cross = link(Context(model, 400, n_seq_max=3, n_batch=64))
        generator = Generator(cross, sampling=WARM, draft=2, prefix_cache=size)
        requests = [generator.add(prompt, max_tokens=9, ignore_eos=True) for prompt in prompts]
        generator.step()
        if size:
            assert [one.seq for one in requests] == [0, None, None]
        run(generator)
        texts[size] = [one.tokens for one in requests]
        assert [one.n_cached for one in requests] == ([0, 100, 170] if size else [0, 0, 0])
    assert texts["all"] == texts[None]


def test_the_third_text_finds_a_state_where_the_second_one_parted(hybrid):
    """The second one finds none there: the first was read in one pass."""
    cross = link(Context(hybrid, 400, n_seq_max=3))
    generator = Generator(cross, sampling=WARM, draft=2, prefix_cache="all")
    text = [n % hybrid.hparams.n_vocab for n in range(5, 305)]
    found = [write(generator, [*text[:200], n, *text[:90]]).n_cached for n in range(5)]
    assert found == [0, 0, 200, 200, 200]


def test_another_question_finds_a_state_near_the_end(hybrid):
    """The first prompt is read in one pass but for its last 128 tokens."""
    cross = link(Context(hybrid, 1000, n_seq_max=2, n_batch=1000))
    generator = Generator(cross, sampling=WARM, draft=2, prefix_cache="all")
    text = [n % hybrid.hparams.n_vocab for n in range(5, 605)]
    found = [write(generator, [*text, *[n] * 40]).n_cached for n in range(3)]
    assert found == [0, 512, 600]
    short = [write(generator, [*text[20:429], *[n] * 100]).n_cached for n in range(2)]
    assert short == [0, 0]


def test_a_state_near_the_end_is_kept_while_the_text_goes_on(hybrid):
    """With four checkpoints it was given up for those of what came after it."""
    cross = link(Context(hybrid, 8400, n_seq_max=2))
    hot = Sampling(temperature=3.0, seed=3)
    generator = Generator(cross, sampling=hot, draft=3, draft_sampler="argmax", prefix_cache="all")
    text = [n % hybrid.hparams.n_vocab for n in range(5, 8005)]
    first = write(generator, [*text, *[1] * 100], 8)
    assert write(generator, [*first.prompt, *first.tokens, *[2] * 100], 8).n_cached == 8107
    assert write(generator, [*text, *[3] * 100], 8).n_cached == 8100 - 128


@pytest.mark.parametrize(("name", "kept"), [("demo", 20), ("demo:mimo2", 0)])
def test_a_window_that_keeps_too_little_begins_anew(name, kept):
    """The text is that of a new generator, whatever memory a model has."""
    model, texts = load_model(name), {}
    for caching in (False, True):
        generator = Generator(
            link(Context(model, 400)),
            sampling=WARM,
            draft=2,
            prefix_cache="all" if caching else None,
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


@pytest.mark.parametrize("size", [-1, 1.5, "some", True])
def test_a_size_is_a_number_of_bytes(size):
    with pytest.raises(BatchError, match="prefix_cache"):
        cached(size=size)
