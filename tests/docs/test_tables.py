"""Tables that are made of facts in the repository have all of them, and stand in a page."""

import re
from pathlib import Path

from tables import TABLES  # tools/ is on the path, see pyproject.toml

ROOT = Path(__file__).parents[2]


def test_every_plugin_has_its_rows():
    for folder in sorted((ROOT / "plugins").iterdir()):
        if list(folder.glob("mtpcore_*/__init__.py")):
            for name in ("supported", "effort"):
                assert any(folder.name in row for row in TABLES[name]()), folder.name


def test_tables_stand_somewhere():
    pages = (ROOT / "docs").rglob("*.md")
    found = [n for p in pages for n in re.findall(r"<!-- table: (\w+)", p.read_text("utf-8"))]
    assert sorted(found) == sorted(TABLES)
