"""The glossary is in alphabetical order and explains no word twice."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "glossary.md"
TERM = re.compile(r"^(\S.*)\n: ", re.MULTILINE)


def faults(text):
    """Return terms that stand before one that should come first, and words explained twice."""
    terms = TERM.findall(text)
    keys = [term.lower() for term in terms]
    words = [word for term in keys for word in term.split(", ")]
    return {
        "order": [b for a, b in pairwise(keys) if a > b],
        "twice": sorted({word for word in words if words.count(word) > 1}),
    }


def test_terms_are_in_order_and_explained_once():
    text = PAGE.read_text("utf-8")
    assert len(TERM.findall(text)) == text.count("\n: ") > 40
    assert faults(text) == {"order": [], "twice": []}


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [("\naccept\n", "\nzip\n", "order"), ("\nblock\n", "\nbatch\n", "twice")],
)
def test_faults_are_seen(old, new, fault):
    text = PAGE.read_text("utf-8")
    assert old in text
    assert faults(text.replace(old, new))[fault]
