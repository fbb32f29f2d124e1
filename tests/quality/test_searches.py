"""Every property is one that ``scripts/deep`` finds, and searches longer."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def files():
    """Return the tree of each file of tests, by its path."""
    return {
        str(path.relative_to(TESTS)): ast.parse(path.read_text("utf-8"))
        for path in sorted(TESTS.rglob("test_*.py"))
    }


def test_no_property_fixes_how_long_it_is_searched(files):
    """``harness.search.searching`` takes a number of examples and follows the profile."""
    fixed = {"max_examples", "derandomize", "database"}
    found = [
        f"{name}:{node.lineno}"
        for name, tree in files.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and fixed & {word.arg for word in node.keywords}
    ]
    assert found == []


def test_tests_that_run_a_machine_are_marked(files):
    """Others need no mark: hypothesis itself gives it to properties and to a machine's own test."""
    runs, marked = set(), set()
    for name, tree in files.items():
        for test in [node for node in tree.body if isinstance(node, ast.FunctionDef)]:
            names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
            runs |= {(name, test.name)} if "run_state_machine_as_test" in names else set()
            marks = [ast.unparse(mark) for mark in test.decorator_list]
            marked |= {(name, test.name)} if "pytest.mark.hypothesis" in marks else set()
    assert runs
    assert marked == runs
