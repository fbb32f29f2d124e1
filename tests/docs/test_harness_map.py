"""The map of ``tests/harness`` names every module, with the words that stand at its top."""

import ast
import re
from pathlib import Path

HARNESS = Path(__file__).parents[1] / "harness"
ROW = re.compile(r"^\| `(\w+\.py)` \| (.*) \|$", re.MULTILINE)


def test_the_map_says_of_each_module_what_its_docstring_says():
    rows = ROW.findall((HARNESS / "README.md").read_text("utf-8"))
    said = [
        (path.name, ast.get_docstring(ast.parse(path.read_text("utf-8"))).splitlines()[0])
        for path in HARNESS.glob("*.py")
        if path.name != "__init__.py"
    ]
    assert sorted(rows) == sorted(said)
