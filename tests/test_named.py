"""Every bug class that is promised a test has one that carries its name."""

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CLASSES = [
    int(n)
    for n in [
        "1",
        "2",
        "4",
        "5",
        "7",
        "8",
        "9",
        "10",
        "14",
        "17",
        "18",
        "19",
        "21",
        "22",
        "24",
        "25",
        "26",
        "27",
        "28",
        "29",
        "30",
        "32",
        "36",
        "37",
        "38",
        "42",
        "43",
        "44",
        "45",
    ]
]


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


@pytest.mark.parametrize("number", CLASSES)
def test_a_test_carries_the_number(number):
    assert number in named()
