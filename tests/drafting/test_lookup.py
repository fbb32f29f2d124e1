"""N-gram lookup: what is proposed, and that every model has it by its name."""

import copy
import pickle
from collections import Counter
from itertools import takewhile

import numpy as np
import pytest
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import BatchError, Context, Generator, LinkError, Sampling, link, load_model
from mtpcore._ext._lookup import MOST_ORDERS, MOST_PLACES, TextIndex
from mtpcore.drafting.lookup import Lookup, TextMatch
from mtpcore.drafting.other_texts import OtherTexts


def tokens_of(text):
    return np.array([ord(c) for c in text], np.int32)


@pytest.mark.parametrize(
    ("text", "k", "wanted"),
    [
        ("abcdeab", 3, "cde"),
        ("abcdeab", 9, "cdeabcdea"),  # where the text ends it goes on as it began
        ("abxabyab", 2, "ya"),  # the latest place
        ("abxabyabxab", 2, "ya"),  # the longest match
        ("pabx qabx rabz sab", 1, "x"),  # what follows most places
        ("zabcx abyyabc", 2, "x "),  # the longest match, though a shorter one is nearer
        ("aaaa", 2, "aa"),  # a match may touch what it matches
        ("abcdef", 4, ""),
        ("a", 4, ""),
        ("", 4, ""),
        ("abab", 0, ""),
        ("xbab", 2, ""),  # one token is too short a match
    ],
)
def test_copies_what_followed(text, k, wanted):
    assert "".join(map(chr, Lookup().find(0, tokens_of(text), k).draft)) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("abcdefgh abcde", "fgh "),  # a match of five: four tokens
        ("abcdefgh ab", "c"),
        ("abc1abd2ab", ""),  # two tokens, and as many places go on otherwise
        ("abc1abc2abd3ab", "c"),
        ("xabcd yabcd zabce abc", "d "),  # three of them, and most places agree: two tokens
        ("xabcd zabce abc", "e"),
        ("ababababab", "abababa"),
    ],
)
def test_proposes_more_where_more_is_the_same(text, wanted):
    proposed = Lookup().propose(0, tokens_of(text), 99).draft
    assert "".join(map(chr, proposed)) == wanted


def find_by_definition(tokens, k, shortest, longest):
    """Look at every place for the last tokens, and choose."""

    def length(place):
        pairs = zip(reversed(tokens[: place + 1]), reversed(tokens), strict=False)
        return min(longest, len([*takewhile(lambda pair: pair[0] == pair[1], pairs)]))

    for n in (4 * shortest, 2 * shortest, shortest):
        ends = range(n - 1, len(tokens) - 1)
        found = [end for end in ends if tokens[end + 1 - n : end + 1] == tokens[-n:]]
        places = [end for end in found[-MOST_PLACES:] if tokens[end + 1] >= 0]
        if places:
            break
    else:
        return TextMatch([], 0, 0, 0)
    follows = Counter(tokens[place + 1] for place in places)
    best = max(places, key=lambda place: (length(place), follows[tokens[place + 1]], place))
    draft = tokens[best + 1 :] * (k + 1)
    draft = [*takewhile(lambda token: token >= 0, draft[:k])]
    return TextMatch(draft, length(best), len(places), follows[tokens[best + 1]])


TEXTS = st.one_of(
    st.lists(st.integers(-1, 2), max_size=12),
    st.lists(st.integers(0, 40), max_size=40),
    st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(1, 60)).map(
        lambda drawn: drawn[0] * drawn[1]
    ),
)
ACTS = st.lists(
    st.tuples(
        st.integers(0, 3),  # the sequence
        st.integers(0, 3),  # the one whose text it takes: forks where that is another
        st.floats(0, 1),  # how much of that text stays
        TEXTS,  # what comes after it
    ),
    min_size=1,
    max_size=12,
)


@searching(150)
@given(ACTS, st.integers(1, 3), st.integers(1, 40), st.integers(0, 9))
def test_finds_what_the_definition_finds(acts, shortest, longest, k):
    """Whatever the texts were before: they grow, go back, fork, and are replaced."""
    lookup, texts = Lookup(shortest=shortest, longest=longest), [[] for _ in range(4)]
    for seq, source, share, more in acts:
        texts[seq] = texts[source][: round(share * len(texts[source]))] + more
        found = lookup.find(seq, np.array(texts[seq], np.int32), k)
        assert found == find_by_definition(texts[seq], k, shortest, max(shortest, longest))


@pytest.mark.parametrize("n_kinds", [2, 9, 300])
def test_a_long_text_is_found_in_as_a_short_one(n_kinds):
    """Its index moves to larger tables on the way."""
    lookup, text = Lookup(), np.random.default_rng(n_kinds).integers(0, n_kinds, 1200, np.int32)
    for n in [*range(1, 1200, 29), 700, 699, 1200, 5]:
        assert lookup.find(0, text[:n], 4) == find_by_definition(text[:n].tolist(), 4, 2, 32)


def test_the_texts_of_the_last_sequences_are_held():
    lookup = Lookup()
    for seq in [*range(300), 3, 299]:
        text = np.array([seq, 7, 8, 9, seq, 7], np.int32)
        assert lookup.find(seq, text, 2).draft == [8, 9]
    assert [*lookup._indexes] == [*range(45, 299), 3, 299]


def test_other_texts_are_found_in_where_that_is_wanted():
    """While they are written, and when another one has taken their place."""
    told, asked = tokens_of("the secret is abcdefgh"), tokens_of("what? the secret is ")
    for others in (0, 100):
        lookup = Lookup(others=others)
        lookup.find(0, told, 4)
        meanwhile = lookup.find(1, asked, 4)
        lookup.find(0, tokens_of("another text"), 4)
        for found in (meanwhile, lookup.find(1, asked, 4)):
            assert found.length == (14 if others else 0)
            assert "".join(map(chr, found.draft)) == ("abcd" if others else "")
        assert copy.deepcopy(lookup)._others.room == others


def test_another_text_that_is_written_ends_where_it_ends():
    """A text goes on as it began; what another one goes on with is not known."""
    lookup = Lookup(others=100)
    lookup.find(0, tokens_of("the secret is ab"), 4)
    assert lookup.find(1, tokens_of("what? the secret is "), 9).draft == [*map(ord, "ab")]
    assert lookup.find(1, tokens_of("what? the secret is ab"), 9).draft == []


def test_the_texts_that_grew_last_are_looked_into():
    """Sixteen of them, however many there are."""
    lookup = Lookup(others=100)
    for seq in range(40):
        lookup.find(seq, np.array([seq, 100 + seq, 7], np.int32), 1)
    found = [
        bool(lookup.find(40, np.array([seq, 100 + seq], np.int32), 1).draft) for seq in range(40)
    ]
    assert found == [False] * 24 + [True] * 16


def test_only_what_a_text_had_by_itself_is_kept():
    lookup = Lookup(others=100)
    for end in ("abcdefghijklmn", "opqrstuvwxyz", "0123456789"):
        lookup.find(0, tokens_of("a beginning that all have: " + end), 4)
    kept = lookup._others._newer.tokens(0)
    assert "".join(map(chr, kept[kept >= 0])) == "l have: abcdefghijklmnl have: opqrstuvwxyz"


@searching(100)
@given(st.lists(st.lists(st.integers(0, 9), max_size=30), max_size=12), st.integers(0, 40))
def test_as_many_tokens_of_texts_that_ended_are_held_as_there_is_room_for(texts, room):
    held, all_of_them = OtherTexts(room, [2], 0), []
    for text in texts:
        held.add(np.array(text, np.int32))
        all_of_them += [*text, -1] if room > 1 else []
        mine = [] if held._older is held._newer else held._older.tokens(0).tolist()
        mine += held._newer.tokens(0).tolist()
        assert len(mine) <= room
        longest = max(map(len, texts))
        if longest < room // 2:
            assert mine == all_of_them[len(all_of_them) - len(mine) :]
            assert len(mine) >= min(len(all_of_them), room // 2 - longest)


def test_a_copy_finds_as_its_original():
    lookup, tokens = Lookup(shortest=3, longest=5), tokens_of("abcdefg abcd")
    wanted = lookup.find(0, tokens, 4)
    assert wanted.length == 4
    for copied in (copy.deepcopy(lookup), pickle.loads(pickle.dumps(lookup))):
        assert copied.find(0, tokens, 4) == wanted
        assert copied.find(0, tokens[-3:], 4).draft == []


@pytest.mark.parametrize(
    "sizes", [{"shortest": 0}, {"longest": 0}, {"shortest": "2"}, {"others": -1}]
)
def test_lengths_are_checked(sizes):
    with pytest.raises(BatchError, match=r"no (length of a match|number of tokens)"):
        Lookup(**sizes)


@pytest.mark.parametrize("orders", [[], [0], [2, 2], [4, 2], [*range(1, MOST_ORDERS + 2)]])
def test_orders_of_an_index_ascend(orders):
    with pytest.raises(ValueError, match="orders"):
        TextIndex(orders, 0)


def test_an_index_without_tokens_finds_nothing():
    assert TextIndex([2], 0).find(np.array([1, 2, 1, 2], np.int32), 3, 8) == ([], 0, 0, 0)


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
