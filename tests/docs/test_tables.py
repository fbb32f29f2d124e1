"""Tables that are made of facts in the repository say what is true now."""

import re
from pathlib import Path

from tables import README, TABLES, filled  # tools/ is on the path, see pyproject.toml

ROOT = Path(__file__).parents[2]


def test_the_readme_is_up_to_date():
    text = README.read_text("utf-8")
    assert filled(text) == text, "run: python tools/tables.py"


def test_every_plugin_has_its_rows():
    for folder in sorted((ROOT / "plugins").iterdir()):
        if list(folder.glob("mtpcore_*/__init__.py")):
            for name in ("supported", "effort"):
                assert any(folder.name in row for row in TABLES[name]()), folder.name


def test_tables_stand_somewhere():
    pages = [README, *(ROOT / "docs").rglob("*.md")]
    found = [n for p in pages for n in re.findall(r"<!-- table: (\w+)", p.read_text("utf-8"))]
    assert sorted(found) == sorted(TABLES)
