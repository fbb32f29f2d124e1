"""The API's page has an entry for every name that authors of plugins import, and no other."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from mtpcore import plugin

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text("utf-8")
AUTHORS = PAGE.split("\n## For authors of plugins\n")[1]


def entries(text):
    """Return the names with an entry, and those of modules that have one as a whole."""
    names = re.findall(r"^\.\. (?!automodule)\w+:: [\w.]+\.(\w+)$", text, re.MULTILINE)
    for module in re.findall(r"^\.\. automodule:: ([\w.]+)$", text, re.MULTILINE):
        names += getattr(import_module(module), "__all__", ())
    return names


def faults(text):
    """Return names that a part for authors leaves out, has without need, or has twice.

    What users of mtpcore meet as well has its entry in another part of the page.
    """
    names = entries(text)
    return {
        "left out": sorted({*plugin.__all__} - {*names, *entries(PAGE.replace(AUTHORS, ""))}),
        "not there": sorted({*names} - {*plugin.__all__}),
        "twice": sorted({name for name in names if names.count(name) > 1}),
    }


def test_every_name_has_an_entry():
    assert faults(AUTHORS) == {"left out": [], "not there": [], "twice": []}


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("plugin.remember\n", "plugin.recall\n", "left out"),
        ("plugin.remember\n", "plugin.recall\n", "not there"),
        ("plugin.remember\n", "plugin.attention\n", "twice"),
    ],
)
def test_faults_are_seen(old, new, fault):
    assert old in AUTHORS
    assert faults(AUTHORS.replace(old, new))[fault]
