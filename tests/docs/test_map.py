"""The map of the source names every module in its room, and nothing that is not there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reading-the-source.md"
ROOM = re.compile(r"^### `(mtpcore/[\w/]*)`\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
MODULE = re.compile(r"^\| `(\w+\.pyx?)` \| (.*) \|$", re.MULTILINE)


def named(text):
    """Return the paths of all modules that a map's tables name, each as often as it is named."""
    return [
        room + module for room, table in ROOM.findall(text) for module, _ in MODULE.findall(table)
    ]


def present():
    """Return the paths of all modules of the package."""
    return {
        str(path.relative_to(ROOT))
        for pattern in ("*.py", "*.pyx")
        for path in (ROOT / "mtpcore").rglob(pattern)
        if path.name != "__init__.py"
    }


def faults(text):
    """Return what a map leaves out, names without need, or names twice."""
    names = named(text)
    return {
        "left out": sorted(present() - set(names)),
        "not there": sorted(set(names) - present()),
        "twice": sorted({name for name in names if names.count(name) > 1}),
    }


def test_the_map_names_every_module():
    assert faults(PAGE.read_text("utf-8")) == {"left out": [], "not there": [], "twice": []}


def test_the_map_says_what_each_module_is_for():
    rows = [
        row for _, table in ROOM.findall(PAGE.read_text("utf-8")) for row in MODULE.findall(table)
    ]
    assert [module for module, purpose in rows if not purpose.strip()] == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("| `inbox.py` |", "| `mailbox.py` |", "not there"),
        ("| `inbox.py` |", "| inbox.py |", "left out"),
        ("| `inbox.py` |", "| `links.py` |", "twice"),
    ],
)
def test_faults_are_seen(old, new, fault):
    text = PAGE.read_text("utf-8")
    assert old in text
    assert faults(text.replace(old, new))[fault]


def test_paths_in_the_text_exist():
    """What stands in backquotes with a folder and an ending is a file of the package."""
    text = PAGE.read_text("utf-8").split("## Every module")[0]
    paths = set(re.findall(r"`([\w]+/[\w/]+\.\w+)`", text))
    assert len(paths) > 20
    assert [
        p for p in paths if not (ROOT / p).exists() and not (ROOT / "mtpcore" / p).exists()
    ] == []
