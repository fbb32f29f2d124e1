"""Cutting texts: at added tokens, and into the pieces of a unigram model."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import models

from mtpcore._ext._cutting import Cutter, Segmenter


@pytest.mark.parametrize(
    ("texts", "tokens", "special"),
    [(["a"], [], [0]), (["a"], [1], []), ([], [1], []), ([""], [1], [0])],
)
def test_texts_to_cut_out_have_a_token_each(texts, tokens, special):
    with pytest.raises((IndexError, ValueError)):
        Cutter(texts, tokens, np.array(special, np.uint8))


def cut_by_definition(text, texts, special, hides):
    """Look at each place for the longest text that begins there."""
    parts, begin, at = [], 0, 0
    while at < len(text):
        found = max((t for t in texts if text.startswith(t, at)), key=len, default=None)
        end = at + len(found or " ")
        if found and not (found in special and hides):
            parts += [text[begin:at], texts.index(found)]
            begin = end
        at = end
    return [part for part in (*parts, text[begin:]) if part != ""]


CUT = ["ab", "abcd", "b", "cd", "é", "🙂a", "aaa", "\x00"]


@given(
    st.lists(st.sampled_from([*CUT, *"abcd 🙂éš\x00"])).map("".join),
    st.sets(st.sampled_from(CUT)),
    st.booleans(),
)
def test_the_leftmost_and_longest_text_is_cut_out(text, special, hides):
    """As the library does that published tokenizers are written for, hidden ones included."""
    cutter = Cutter(CUT, [*range(len(CUT))], np.array([t in special for t in CUT], np.uint8))
    assert cutter.cut(text, not hides) == cut_by_definition(text, CUT, special, hides)


PIECES = [
    "a",
    "b",
    "é",
    "ab",
    "ba",
    "aab",
    "bé",
    "🙂",
    "🙂\x00",
    "\u2581a",
    "aaaaaaaa",
    "pq",
    "rs",
    "qrs",
]


def cut_by_the_library(text, scores):
    """Cut by the model of the ``tokenizers`` library; a space stands for what is unknown."""
    if not text:
        return []
    model = models.Unigram([(" ", min(scores)), *zip(PIECES, scores, strict=True)], unk_id=0)
    return [token.id - 1 if token.id else token.value for token in model.tokenize(text)]


@given(
    st.lists(st.sampled_from([*PIECES, *"abcé🙂\x00pqrs\u2581"])).map("".join),
    st.lists(
        st.integers(-12, 0) | st.floats(-30, 0), min_size=len(PIECES), max_size=len(PIECES)
    ).map(lambda scores: [float(score) for score in scores]),
)
@example("pqrs", [-9.75] * 13 + [0.0])  # 0.25 less for an unknown p than for pq and rs
def test_the_likeliest_pieces_are_those_of_the_library(text, scores):
    """Also where sums are equal; characters in a row that are no pieces are one text."""
    segmenter = Segmenter(PIECES, [*range(len(PIECES))], np.array(scores))
    assert segmenter.cut(text) == cut_by_the_library(text, scores)


def test_a_model_without_pieces_knows_nothing():
    segmenter = Segmenter([], [], np.zeros(0))
    assert (segmenter.cut("abc"), segmenter.cut("")) == (["abc"], [])


@pytest.mark.parametrize(
    ("texts", "tokens", "scores"),
    [(["a"], [], [0.0]), (["a"], [1], []), ([], [1], []), ([""], [1], [0.0])],
)
def test_pieces_have_a_token_and_a_score_each(texts, tokens, scores):
    with pytest.raises((IndexError, ValueError)):
        Segmenter(texts, tokens, np.array(scores, np.float64))


@pytest.mark.parametrize(
    "made", [Cutter(["a"], [0], np.zeros(1, np.uint8)), Segmenter(["a"], [0], np.zeros(1))]
)
def test_they_are_made_once(made):
    kind = np.uint8 if isinstance(made, Cutter) else np.float64
    with pytest.raises(RuntimeError, match="made once"):
        made.__init__(["b"], [1], np.zeros(1, kind))
