"""Tables that are made of facts in the repository say what is true now."""

import re
from pathlib import Path

import pytest
from tables import PAGES, TABLES, filled  # tools/ is on the path, see pyproject.toml

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", PAGES)
def test_tables_are_up_to_date(page):
    text = (ROOT / page).read_text()
    assert filled(text) == text, "run: python tools/tables.py"


def test_every_plugin_has_its_rows():
    for folder in sorted((ROOT / "plugins").iterdir()):
        if list(folder.glob("mtpcore_*/__init__.py")):
            for make in TABLES.values():
                assert any(folder.name in row for row in make()), folder.name


def test_tables_stand_somewhere():
    found = [
        n for page in PAGES for n in re.findall(r"<!-- table: (\w+)", (ROOT / page).read_text())
    ]
    assert sorted(found) == sorted(TABLES)
