"""The map of the source names only what is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reading-the-source.md"


def test_paths_in_the_text_exist():
    """What stands in backquotes with a folder and an ending is a file of the package."""
    paths = set(re.findall(r"`([\w]+/[\w/]+\.\w+)`", PAGE.read_text("utf-8")))
    assert len(paths) > 20
    assert [
        p for p in paths if not (ROOT / p).exists() and not (ROOT / "mtpcore" / p).exists()
    ] == []
