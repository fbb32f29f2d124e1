"""Every bug class that is promised a test has one that carries its name."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CLASSES = {*range(1, 6), *range(7, 11), 14, *range(17, 20), 21, 22, *range(24, 31), 32} | {
    *range(36, 39),
    *range(41, 46),
}


@cache
def named():
    """Return the numbers that tests carry in their names or at the start of their docstrings."""
    found = set()
    for path in HERE.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                words = node.name.split("_")
                doc = (ast.get_docstring(node) or "").split(maxsplit=1)[:1]
                for word in (*words, *doc):
                    match = re.fullmatch(r"[Tt](\d+):?", word)
                    found |= {int(match[1])} if match else set()
    return found


@pytest.mark.parametrize("number", sorted(CLASSES))
def test_a_test_carries_the_number(number):
    assert number in named()
