"""Prose and source use the field's words; README begins with those that people search for."""

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
    r"\bturn(s|ed)? by\b(?! turn)|\bturned\b": "rotated (RoPE), or transposed",
    r"\bcompany\b": "batch",
    r"other people's": "third-party",
    r"control groups?": "cgroup CPU quota",
    r"\bdecod\w+ plainly\b": "without drafts",
    r"\bentrants?\b|\bhopeless\b": "candidates",
    r"\bbest token\b": "most probable token",
    r"(?<!left )(?<!lag )\bbehind\b": "after, past the end of, or in the background",
}
"""Words that this project once had for things that the field has a word for."""
NAMES = {"behind": "after", "dice": "noise", "turned": "rotated"}
"""Parts of names that the source does not use."""
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
    *sorted((ROOT / "plugins").glob("*/README.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
SOURCES = {
    "Python": ["py", "pyi", "pyx", "pxd"],
    "C": ["c", "h", "inc", "cu", "cuh"],
}
PROSE = {
    "Python": r"""#[^\n]*|("{3}|'{3}|["'])(?:\\.|(?!\1).)*\1""",
    "C": r"""//[^\n]*|/\*.*?\*/|(["'])(?:\\.|(?!\1).)*\1""",
}
"""Comments, docstrings and messages of each language; Cython is written as Python is."""


def sources():
    """Yield each file of the package and of plugins, and the language it is written in."""
    for language, endings in SOURCES.items():
        for ending in endings:
            for folder in ("mtpcore", "plugins/*/mtpcore_*"):
                for path in sorted(ROOT.glob(f"{folder}/**/*.{ending}")):
                    yield pytest.param(path, language, id=str(path.relative_to(ROOT)))


def private(text):
    """Return the private words in the prose of a page; code is not looked at."""
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = " ".join(prose.split())
    return [(m[0], better) for w, better in PRIVATE.items() for m in re.finditer(w, prose, re.I)]


def private_in_source(source, language):
    """Return the private words of a file: of comments, docstrings, messages and names."""
    pattern = re.compile(PROSE[language], re.DOTALL)
    code = pattern.sub(" ", source)
    found = [
        (name, NAMES[part.lower()])
        for name in re.findall(r"[A-Za-z_]\w*", code)
        for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
        if part.lower() in NAMES
    ]
    for prose in pattern.finditer(source):
        found += private(re.sub(r"\n *\*", " ", prose[0]) if language == "C" else prose[0])
    return found


@pytest.mark.parametrize(
    "page", [p for p in PAGES if "_build" not in p.parts], ids=lambda p: str(p.relative_to(ROOT))
)
def test_no_private_words(page):
    assert private(page.read_text("utf-8")) == []


def test_private_words_are_seen_in_prose_alone():
    assert private("drafts accepted by the dice\n") == [("dice", PRIVATE[r"\bdice\b"])]
    assert private("keys are\nturned by\nposition")[0][0] == "turned by"
    assert private("`dice`\n\n```python\ndice = 1\n```\n") == []


@pytest.mark.parametrize(("path", "language"), [*sources()])
def test_no_private_words_in_source(path, language):
    assert private_in_source(path.read_text("utf-8"), language) == []


@pytest.mark.parametrize(
    ("language", "source", "word"),
    [
        ("Python", 'def f():\n    """Return what is behind it."""\n', "behind"),
        ("Python", "x = 1  # keys are\n# turned by position\n", "turned by"),
        ("Python", 'raise ValueError(f"a row behind {end}")\n', "behind"),
        ("Python", "n_rows_behind = 1\n", "n_rows_behind"),
        ("Python", "def f(*, turned): ...\n", "turned"),
        ("Python", "cdef void pack_behind(int32s *rows) noexcept nogil:\n", "pack_behind"),
        ("C", "/* a row that\n * is behind it */\n", "behind"),
        ("C", 'return "it\'s \\"behind\\"";\n', "behind"),
        ("C", "const char quote = '\"'; // behind\n", "behind"),
        ("C", "write(own.behind, '\"', '\"');\n", "behind"),
        ("C", "enum { MTP_BEHIND };\n", "MTP_BEHIND"),
    ],
)
def test_private_words_are_seen_in_source(language, source, word):
    assert private_in_source(source, language)[0][0] == word


@pytest.mark.parametrize(
    ("language", "source"),
    [
        ("Python", "'nothing is left behind'\nlookbehind = take_turns\n"),
        ("C", "/* what is left\n * behind; `behind` */\nint lookbehind = turns;\n"),
    ],
)
def test_other_words_are_not_private(language, source):
    assert private_in_source(source, language) == []


def test_the_first_lines_have_the_words_that_people_search_for():
    first = " ".join(" ".join((ROOT / "README.md").read_text("utf-8").splitlines()[:24]).split())
    assert [word for word in SEARCHED if word.lower() not in first.lower()] == []
