"""Joining letters against its definition in Python."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpcore._ext._joining import Joiner

TEXTS = ["a", "b", "c", "aa", "ab", "bc", "aaa", "abc", "bca", "cab", "?"]
NO_BYTES = np.full(256, -1, np.int32)
IDS = {text: token for token, text in enumerate(TEXTS)}
JOINABLE = np.array([text != "?" for text in TEXTS], np.uint8)
WORDS = st.lists(st.text("abc?", min_size=1, max_size=40), max_size=4)


def joiner_of(texts=TEXTS, ids=IDS, joinable=JOINABLE, of_bytes=NO_BYTES, unknown=10, **order):
    return Joiner(texts, ids, joinable, of_bytes, unknown, **order)


def join_by_definition(words, rank_of, whole_words=False):
    """Join the best pair of neighbours of one word, the leftmost of those that tie, and again."""
    found = []
    for word in words:
        parts = [word] if whole_words and word in IDS else list(word)
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


@given(WORDS, st.lists(st.integers(-3, 3), min_size=len(TEXTS), max_size=len(TEXTS)))
def test_the_best_score_is_joined_first(words, scores):
    def rank_of(left, right):
        known = left + right in IDS and "?" not in left + right
        return -scores[IDS[left + right]] if known else None

    joiner = joiner_of(scores=np.array(scores, np.float64))
    for _ in range(2):  # the second time words are remembered
        assert joiner.join(words) == join_by_definition(words, rank_of)


@given(
    WORDS,
    st.permutations(["a b", "a a", "aa a", "b c", "ab c", "bc a", "a ?", "b b"]),
    st.booleans(),
)
def test_the_best_rank_is_joined_first(words, merges, whole_words):
    """Pairs that make no token are passed over, and told."""
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    rank_of = lambda left, right: ranks.get(f"{left} {right}") if left + right in IDS else None  # noqa: E731
    joiner = joiner_of(merges=[*merges], whole_words=whole_words)
    assert joiner.join(words) == join_by_definition(words, rank_of, whole_words)
    assert joiner.missed in (None, "b b")


def test_a_long_word_is_joined_in_little_time():
    """Takes n log n steps; with n squared it would not end."""
    joiner = joiner_of(scores=np.zeros(len(TEXTS)))
    assert joiner.join(["a" * 300_000]) == [IDS["aaa"]] * 100_000


@pytest.mark.parametrize(
    "changes",
    [
        {"ids": {"ab": len(TEXTS)}},
        {"ids": {"ab": -2}},
        {"ids": {"a": len(TEXTS)}},
        {"ids": {"a": -2}},
        {"joinable": JOINABLE[1:]},
        {"scores": np.zeros(3)},
        {"of_bytes": NO_BYTES[1:]},
        {"of_bytes": np.full(256, len(TEXTS), np.int32)},
        {"of_bytes": np.full(256, -2, np.int32)},
        {"unknown": len(TEXTS)},
        {"unknown": -2},
        {"unknown": None},  # bytes need tokens then
    ],
)
def test_what_lies_outside_is_refused(changes):
    given = {"scores": np.zeros(len(TEXTS))} | changes
    with pytest.raises(IndexError):
        joiner_of(**given | {"ids": IDS | changes.get("ids", {})}).join(["ab"])


def test_letters_are_tokens_or_bytes_or_unknown():
    """In this order; unknown ones beside each other are one."""
    of_bytes = NO_BYTES.copy()
    of_bytes[list("é".encode())] = 4, 5
    joiner = joiner_of(of_bytes=of_bytes, merges=[])
    assert joiner.join(["aéxèb", "xyz", "", "🙂", "\uffff"]) == [0, 4, 5, 10, 1, 10, 10, 10]
    assert joiner_of(of_bytes=np.arange(256, dtype=np.int32) % 7, unknown=None, merges=[]).join(
        ["é🙂"]
    ) == [byte % 7 for byte in "é🙂".encode()]


@pytest.mark.parametrize("order", [{}, {"scores": np.zeros(len(TEXTS)), "merges": []}])
def test_scores_or_merges_order_the_joints(order):
    with pytest.raises(ValueError, match="scores or merges"):
        joiner_of(**order)


def test_pairs_are_remembered_as_they_are():
    """There are more of them than are remembered at a time."""
    letters = [chr(0x4E00 + i) for i in range(500)]
    joints = [a + b for a, b in itertools.pairwise(letters)]
    texts = [*letters, *joints]
    ids = {text: token for token, text in enumerate(texts)}
    joinable = np.ones(len(texts), np.uint8)
    joiner = joiner_of(texts, ids, joinable, unknown=0, scores=np.zeros(len(texts)))
    words = ["".join(pair) for pair in itertools.product(letters, repeat=2)]
    found = joiner.join(words * 2)
    expected = [[ids[word]] if word in ids else [ids[c] for c in word] for word in words * 2]
    assert found == [token for tokens in expected for token in tokens]


@pytest.mark.parametrize("order", [{"scores": np.zeros(len(TEXTS))}, {"merges": ["a b"]}])
def test_joiner_is_made_once(order):
    joiner = joiner_of(**order)
    with pytest.raises(RuntimeError, match="made once"):
        joiner.__init__(["a"], {"a": 0}, np.ones(1, np.uint8), NO_BYTES, 0, merges=[])
