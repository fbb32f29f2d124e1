"""No file holds what a merge could not decide."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("mtpcore", "plugins", "tests", "docs", "examples", "tools", "benchmarks", "scripts")
KINDS = {".py", ".pyi", ".pyx", ".pxd", ".c", ".h", ".inc", ".cu", ".cuh", ".md", ".json", ""}
MARK = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)


def test_no_file_has_a_mark_of_a_conflict():
    files = [
        file
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and file.suffix in KINDS and "__pycache__" not in file.parts
    ]
    files += [file for file in ROOT.iterdir() if file.suffix in {".md", ".toml", ".py"}]
    assert len(files) > 500
    found = [file for file in files if MARK.search(file.read_text("utf-8", errors="replace"))]
    assert found == []
