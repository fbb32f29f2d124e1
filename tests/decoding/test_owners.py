"""Sequences belong to whoever uses them; where none will ever be free, that is an error."""

import logging

import pytest
from harness.scripted import Letters, cross_of, plain, run

from mtpcore.decoding import Generator
from mtpcore.decoding.written_text import WrittenText
from mtpcore.errors import BatchError, CapacityError, LinkError
from mtpcore.runtime.batch import Batch
from mtpcore.sampling import Sampling

PROMPT, WARM = [3, 1, 4], Sampling(temperature=1.0, seed=8)
TRUTH = plain(PROMPT, WARM, 12)


def crossed(n_seq_max):
    return cross_of("head", skill=12, n_seq_max=n_seq_max)[0]


def generators(cross, n):
    return [Generator(cross, sampling=WARM, draft=3) for _ in range(n)]


def test_sequences_that_were_processed_by_hand_are_not_taken():
    cross = crossed(2)
    (generator,) = generators(cross, 1)
    cross.llm.process(Batch.of([1, 2], seq=0))
    cross.llm.process(Batch.of([5], seq=1))
    request = generator.add(PROMPT, max_tokens=12)
    for act in (generator.step, lambda: list(generator.generate(PROMPT))):
        with pytest.raises(CapacityError, match="no sequence is free") as caught:
            act()
        assert caught.value.got.startswith("sequence 0: 2 tokens processed by hand; sequence 1: 1")
        assert caught.value.fix
    cross.remove(1)  # looked for when it is needed
    run(generator)
    assert request.tokens == TRUTH
    assert cross.tokens(0) == [1, 2]


BY_HAND = {
    "process": lambda cross: cross.llm.process(Batch.of(range(len(PROMPT) + 5))),
    "fork": lambda cross: cross.fork(1, 0),
    "load": lambda cross: cross.load(0, cross.save(1)),
}
"""Ways to fill sequence 0 with as many tokens as a request leaves: the last one is not read."""


@pytest.mark.parametrize("act", BY_HAND)
@pytest.mark.parametrize("size", [None, 0, "all"])
def test_a_text_by_hand_as_long_as_one_that_was_finished_is_not_taken(act, size):
    """What a generator left of its own is told from what others put there, not by its length."""
    cross = crossed(2)
    cross.llm.process(Batch.of(range(len(PROMPT) + 5), seq=1))
    generator = Generator(cross, sampling=WARM, prefix_cache=size)
    list(generator.generate(PROMPT, max_tokens=6))
    if size is not None:  # else the generator has removed it
        cross.remove(0)
    BY_HAND[act](cross)
    generator.add([5], max_tokens=2)
    with pytest.raises(CapacityError, match="no sequence is free"):
        generator.step()
    assert cross.tokens(0) == cross.tokens(1)


def test_generators_take_turns_on_one_cross():
    cross = crossed(3)
    one, other = generators(cross, 2)
    first = [one.add(PROMPT, max_tokens=12), one.add([1, 2], max_tokens=9)]
    second = other.add([5], max_tokens=10)
    while one.active or other.active:
        one.step()
        other.step()
    assert [r.tokens for r in first] == [TRUTH, plain([1, 2], WARM, 9)]
    assert second.tokens == plain([5], WARM, 10)
    assert one.stats.tokens == 21
    assert other.stats.tokens == 10


def test_a_request_is_of_the_generator_that_queued_it():
    first, second = generators(crossed(2), 2)
    request = first.add(PROMPT, max_tokens=12)
    with pytest.raises(BatchError, match="another Generator works on the request"):
        second.queue(request)
    first.queue(request)
    run(first)
    second.queue(request)  # it is done
    other = second.add(PROMPT, max_tokens=12)
    run(second)
    assert request.tokens == other.tokens == TRUTH


def test_a_generator_does_not_wait_for_what_another_one_holds():
    """By its own rounds that would never end."""
    cross = crossed(1)
    one, other = generators(cross, 2)
    first, second = one.add(PROMPT, max_tokens=12), other.add([5], max_tokens=10)
    one.step()
    with pytest.raises(CapacityError, match="no sequence is free") as caught:
        other.step()
    assert "Request(3 prompt tokens, 1 tokens" in caught.value.got
    run(one)
    run(other)
    assert first.tokens == TRUTH
    assert second.tokens == plain([5], WARM, 10)


def test_a_finished_text_that_goes_on_by_hand_is_not_taken():
    cross = crossed(1)
    generator = Generator(cross, sampling=WARM, prefix_cache="all")
    list(generator.generate(PROMPT, max_tokens=6))
    cross.verify({0: []}, WARM)
    generator.add([5], max_tokens=2)
    with pytest.raises(CapacityError, match="no sequence is free"):
        generator.step()
    cross.accept(0)
    with pytest.raises(CapacityError, match="no sequence is free"):
        generator.step()


@pytest.mark.parametrize("meddle", ["remove", "process", "rollback"])
def test_a_sequence_that_others_changed_is_named(meddle):
    cross = crossed(2)
    (generator,) = generators(cross, 1)
    request, other = (generator.add(p, max_tokens=12) for p in (PROMPT, [1, 2]))
    generator.step()
    generator.step()
    n = cross.llm.length(0)
    if meddle == "remove":
        cross.remove(0)
    elif meddle == "rollback":
        cross.rollback(0, n - 1)
    else:
        cross.llm.process(Batch.of([1], seq=0, pos=n))
    with pytest.raises(LinkError, match="changed by others"):
        generator.step()
    generator.cancel(request)
    run(generator)
    assert other.tokens == plain([1, 2], WARM, 12)


class Few(Letters):
    """Has entries for the first few tokens only."""

    def stream(self, special=False, start=False):
        return self

    def push(self, token):
        raise KeyError(token)


def test_a_tokenizer_that_raises_changes_nothing():
    """Text is decided before a round is final."""
    cross, _ = cross_of("head", skill=12, n_seq_max=2)
    cross.llm.model.tokenizer = Few()
    (generator,) = generators(cross, 1)
    request = generator.add(PROMPT, max_tokens=5)
    for _ in range(3):
        with pytest.raises(KeyError):
            generator.step()
        assert (request.tokens, request.n_prefilled, cross.llm.length(0)) == ([], 0, 0)
    cross.llm.model.tokenizer = None
    request._written = WrittenText(None, (), special=False, start=True)
    run(generator)
    assert request.tokens == TRUTH[:5]


def test_a_tokenizer_with_fewer_entries_than_the_model_has_rows(caplog, monkeypatch):
    """Such tokens are no text, which is said once."""
    import mtpcore

    model = mtpcore.load_model("demo")
    tokenizer = model.tokenizer
    cross = mtpcore.link(mtpcore.Context(model, 128, threads=1))
    wanted = Generator(cross, sampling=WARM, draft=3).add
    request = wanted([5, 6, 7], max_tokens=40, ignore_eos=True)
    monkeypatch.setattr(tokenizer, "n_vocab", 300)
    monkeypatch.setattr(tokenizer, "_has_warned", False)
    with caplog.at_level(logging.WARNING):
        tokens = list(
            Generator(cross, sampling=WARM, draft=3).generate(
                [5, 6, 7], max_tokens=40, ignore_eos=True
            )
        )
    said = [one.getMessage() for one in caplog.records if "is no text" in one.getMessage()]
    assert len(said) == 1
    assert any(token >= 300 for token in tokens)
    assert not request.done
