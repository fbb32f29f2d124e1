"""Prose and source use the field's words; README begins with those that people search for."""

import io
import re
import tokenize
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
    r"\bturn(s|ed)? by\b(?! turn)|\bturned\b": "rotated (RoPE), or transposed",
    r"\bcompany\b": "batch",
    r"other people's": "third-party",
    r"control groups?": "cgroup CPU quota",
    r"\bdecod\w+ plainly\b": "without drafts",
    r"\bentrants?\b|\bhopeless\b": "candidates",
    r"\bbest token\b": "most probable token",
}
"""Words that this project once had for things that the field has a word for."""
BEHIND = r"(?<!left )(?<!lag )\bbehind\b"
IN_SOURCE = PRIVATE | {BEHIND: "after, or in the background"}
"""Those of comments, docstrings and messages of the source."""
NAMES = {"behind": "after", "dice": "noise", "turned": "rotated"}
"""Parts of names that the source does not use."""
WHO_WAITS = ("mtpcore/backends/cuda/", "mtpcore/backends/draft.py", "mtpcore/backends/schedule.py")
"""Files whose words are still to be changed."""
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
    *sorted((ROOT / "plugins").glob("*/README.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]


SOURCES = [
    path
    for path in sorted([*ROOT.glob("mtpcore/**/*.py"), *ROOT.glob("plugins/*/mtpcore_*/**/*.py")])
    if not str(path.relative_to(ROOT)).startswith(WHO_WAITS)
]


def private(text, words=PRIVATE):
    """Return the private words in the prose of a page; code is not looked at."""
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = " ".join(prose.split())
    return [(m[0], better) for w, better in words.items() for m in re.finditer(w, prose, re.I)]


def private_in_source(source):
    """Return the private words of a module: of comments, docstrings, messages and names."""
    texts, found = [], []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            parts = token.string.lower().split("_")
            found += [(token.string, NAMES[part]) for part in parts if part in NAMES]
        elif token.type in (tokenize.COMMENT, tokenize.STRING):
            texts.append(token.string)
    return found + [each for text in texts for each in private(text, IN_SOURCE)]


@pytest.mark.parametrize(
    "page", [p for p in PAGES if "_build" not in p.parts], ids=lambda p: str(p.relative_to(ROOT))
)
def test_no_private_words(page):
    assert private(page.read_text("utf-8")) == []


def test_private_words_are_seen_in_prose_alone():
    assert private("drafts accepted by the dice\n") == [("dice", PRIVATE[r"\bdice\b"])]
    assert private("keys are\nturned by\nposition")[0][0] == "turned by"
    assert private("`dice`\n\n```python\ndice = 1\n```\n") == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_private_words_in_source(path):
    assert private_in_source(path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ('def f():\n    """Return what is behind it."""\n', "behind"),
        ("x = 1  # keys are\n# turned by position\n", "turned by"),
        ('raise ValueError("a row behind the end")\n', "behind"),
        ("n_rows_behind = 1\n", "n_rows_behind"),
        ("def f(*, turned): ...\n", "turned"),
    ],
)
def test_private_words_are_seen_in_source(source, word):
    assert private_in_source(source)[0][0] == word
    assert private_in_source("'nothing is left behind'\nlookbehind = take_turns\n") == []


def test_the_first_lines_have_the_words_that_people_search_for():
    first = " ".join(" ".join((ROOT / "README.md").read_text("utf-8").splitlines()[:24]).split())
    assert [word for word in SEARCHED if word.lower() not in first.lower()] == []
