"""N-gram lookup: what is proposed, and that every model has it by its name."""

import numpy as np
import pytest
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import Context, Generator, LinkError, Sampling, link, load_model
from mtpcore.drafting.lookup import Lookup


def propose(text, k, **sizes):
    return Lookup(**sizes).propose(0, np.array([ord(c) for c in text], np.int32), k)


@pytest.mark.parametrize(
    ("text", "k", "wanted"),
    [
        ("abcdeab", 3, "cde"),
        ("abcdeab", 9, "cdeab"),
        ("abxabyab", 2, "ya"),  # the latest place
        ("zabcx abyyabc", 2, "x "),  # the longest match, though a shorter one is nearer
        ("aaaa", 2, "a"),  # a match may touch what it matches
        ("abcdef", 4, ""),
        ("a", 4, ""),
        ("", 4, ""),
        ("abab", 0, ""),
        ("xbab", 2, ""),  # one token is too short a match
    ],
)
def test_copies_what_followed(text, k, wanted):
    assert "".join(map(chr, propose(text, k))) == wanted


@searching(150)
@given(st.text("abc", max_size=40), st.integers(1, 5), st.integers(0, 4), st.integers(0, 6))
def test_it_is_the_latest_of_the_longest_matches(text, shortest, more, k):
    longest = shortest + more
    wanted = ""
    for n in range(min(longest, len(text) - 1), shortest - 1, -1):
        begin = text.rfind(text[-n:], 0, len(text) - 1)
        if begin >= 0:
            wanted = text[begin + n : begin + n + k]
            break
    assert "".join(map(chr, propose(text, k, longest=longest, shortest=shortest))) == wanted


def test_every_model_has_it_by_its_name_alone():
    model = load_model("demo")
    assert "lookup" not in {spec.name for spec in model.drafters}
    cross = link(Context(model, 120), "lookup")
    prompt = model.tokenizer.encode("a, b = b, a\nc, d = d, c\na, b = ")
    generator = Generator(cross, sampling=Sampling.greedy(), draft=4)
    text = list(generator.generate(prompt, max_tokens=40))
    plain = Generator(Context(model, 120), sampling=Sampling.greedy())
    assert text == list(plain.generate(prompt, max_tokens=40))
    drafts, drafted, accepted = generator.stats.drafters["lookup"]
    assert drafted >= drafts > 0
    assert accepted == generator.stats.accepted > 0
    with pytest.raises(LinkError, match="no drafter 'look_up'"):
        link(Context(model, 120), "look_up")
