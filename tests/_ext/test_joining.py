"""Joining pieces against its definition in Python."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpcore._ext._joining import Joiner

TEXTS = ["a", "b", "c", "aa", "ab", "bc", "aaa", "abc", "bca", "cab", "?"]
IDS = {text: token for token, text in enumerate(TEXTS)}
JOINABLE = np.array([text != "?" for text in TEXTS], np.uint8)
WORDS = st.lists(st.tuples(st.sampled_from("abc?"), st.integers(0, 2)), max_size=40)


def join_by_definition(letters, words, rank_of, whole_words=False):
    """Join the best pair of neighbours of one word, the leftmost of those that tie, and again."""
    found = []
    for _, group in itertools.groupby(zip(letters, words, strict=True), key=lambda pair: pair[1]):
        parts = [letter for letter, _ in group]
        if whole_words and "".join(parts) in IDS:
            parts = ["".join(parts)]
        while True:
            ranked = [
                (rank, i)
                for i, pair in enumerate(itertools.pairwise(parts))
                if (rank := rank_of(*pair)) is not None
            ]
            if not ranked:
                break
            i = min(ranked)[1]
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        found += [IDS[part] for part in parts]
    return found


def columns(pairs):
    return [letter for letter, _ in pairs], [word for _, word in pairs]


@given(WORDS, st.lists(st.integers(-3, 3), min_size=len(TEXTS), max_size=len(TEXTS)))
def test_the_best_score_is_joined_first(pairs, scores):
    def rank_of(left, right):
        known = left + right in IDS and "?" not in left + right
        return -scores[IDS[left + right]] if known else None

    letters, words = columns(pairs)
    joiner = Joiner(TEXTS, IDS, JOINABLE, np.array(scores, np.float64))
    expected = join_by_definition(letters, words, rank_of)
    assert joiner.join([IDS[letter] for letter in letters], words) == expected


@given(
    WORDS,
    st.permutations(["a b", "a a", "aa a", "b c", "ab c", "bc a", "a ?", "b b"]),
    st.booleans(),
)
def test_the_best_rank_is_joined_first(pairs, merges, whole_words):
    """Pairs that make no token are passed over, and told."""
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    rank_of = lambda left, right: ranks.get(f"{left} {right}") if left + right in IDS else None  # noqa: E731
    letters, words = columns(pairs)
    joiner = Joiner(TEXTS, IDS, JOINABLE, ranks=ranks, whole_words=whole_words)
    expected = join_by_definition(letters, words, rank_of, whole_words)
    assert joiner.join([IDS[letter] for letter in letters], words) == expected
    assert joiner.missed in (None, "b b")


def test_a_long_word_is_joined_in_little_time():
    """Takes n log n steps; with n squared it would not end."""
    joiner = Joiner(TEXTS, IDS, JOINABLE, np.zeros(len(TEXTS)))
    assert joiner.join([0] * 300_000, [0] * 300_000) == [IDS["aaa"]] * 100_000


@pytest.mark.parametrize(
    ("pieces", "words", "changes"),
    [
        ([0, len(TEXTS)], [0, 0], {}),
        ([0, -1], [0, 0], {}),
        ([0, 1], [0], {}),
        ([0, 1], [0, 0], {"ids": {"ab": len(TEXTS)}}),
        ([0, 1], [0, 0], {"joinable": JOINABLE[1:]}),
        ([0, 1], [0, 0], {"scores": np.zeros(3)}),
    ],
)
def test_what_lies_outside_is_refused(pieces, words, changes):
    given = {"texts": TEXTS, "ids": IDS, "joinable": JOINABLE, "scores": np.zeros(len(TEXTS))}
    with pytest.raises(IndexError):
        Joiner(**given | changes).join(pieces, words)


@pytest.mark.parametrize("order", [{}, {"scores": np.zeros(len(TEXTS)), "ranks": {}}])
def test_scores_or_ranks_order_the_joints(order):
    with pytest.raises(ValueError, match="scores or ranks"):
        Joiner(TEXTS, IDS, JOINABLE, **order)


def test_pairs_are_remembered_as_they_are():
    """There are more of them than are remembered at a time."""
    letters = [chr(0x4E00 + i) for i in range(500)]
    joints = [a + b for a, b in itertools.pairwise(letters)]
    texts = [*letters, *joints]
    ids = {text: token for token, text in enumerate(texts)}
    joiner = Joiner(texts, ids, np.ones(len(texts), np.uint8), np.zeros(len(texts)))
    pairs = [*itertools.product(range(500), repeat=2)] * 2
    words = [word for word in range(len(pairs)) for _ in range(2)]
    found = joiner.join([letter for pair in pairs for letter in pair], words)
    expected = [ids[texts[a] + texts[b]] if b == a + 1 else (a, b) for a, b in pairs]
    assert found == [t for e in expected for t in (e if isinstance(e, tuple) else (e,))]
