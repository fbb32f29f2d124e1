"""Prose uses the field's words, and README's first lines have those that people search for."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEARCHED = (
    "speculative decoding",
    "GGUF",
    "CPU",
    "MTP",
    "NextN",
    "EAGLE-3",
    "draft model",
    "plugin",
    "batch-invariant",
    "token for token",
    "KV cache",
    "acceptance rate",
)
PRIVATE = {
    r"\bdice\b": "Gumbel noise, or simulated acceptance",
    r"\bturn(s|ed)? by\b|\bturned\b": "rotated (RoPE), or transposed",
    r"\bcompany\b": "batch",
    r"other people's": "third-party",
    r"control groups?": "cgroup CPU quota",
    r"\bdecod\w+ plainly\b": "without drafts",
    r"\bentrants?\b|\bhopeless\b": "candidates",
    r"\bbest token\b": "most probable token",
}
"""Words that this documentation once had for things that the field has a word for."""
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
    *sorted((ROOT / "plugins").glob("*/README.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]


def private(text):
    """Return the private words in the prose of a page; code is not looked at."""
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = " ".join(prose.split())
    return [(m[0], better) for w, better in PRIVATE.items() for m in re.finditer(w, prose, re.I)]


@pytest.mark.parametrize(
    "page", [p for p in PAGES if "_build" not in p.parts], ids=lambda p: str(p.relative_to(ROOT))
)
def test_no_private_words(page):
    assert private(page.read_text("utf-8")) == []


def test_private_words_are_seen_in_prose_alone():
    assert private("drafts accepted by the dice\n") == [("dice", PRIVATE[r"\bdice\b"])]
    assert private("keys are\nturned by\nposition")[0][0] == "turned by"
    assert private("`dice`\n\n```python\ndice = 1\n```\n") == []


def test_the_first_lines_have_the_words_that_people_search_for():
    first = " ".join(" ".join((ROOT / "README.md").read_text("utf-8").splitlines()[:24]).split())
    assert [word for word in SEARCHED if word.lower() not in first.lower()] == []
