"""A name of a class or of a type means one thing in all of mtpcore and its plugins."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = {
    "Choice": "a device's and the definition's",
    "Codes": "frames of codes, and activations as codes",
    "Columns": "of one value, and of several that share memory",
    "Found": "what a search of one file found",
    "Heads": "of a file, and of attention",
    "Round": "of schedules, and of draft lengths",
    "Rows": "of a prompt, of a run, and of a batch of nodes",
    "Shape": "of an array, and of a run",
}
"""Names that are still used twice, each with what they mean."""


def names_of_types(source):
    """Yield the classes of a module and its aliases of types, without leading underscores."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name.lstrip("_")
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or "TypeVar" in ast.dump(node):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        name = target.id.lstrip("_") if isinstance(target, ast.Name) else ""
        if name[:1].isupper() and not name.isupper():
            yield name


def twice(sources):
    """Return the names that more than one of the sources, or one of them twice, gives a type."""
    places = defaultdict(list)
    for place, source in sources.items():
        for name in names_of_types(source):
            places[name].append(place)
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_two_types_share_a_name():
    files = [p for folder in ("mtpcore", "plugins") for p in (ROOT / folder).rglob("*.py")]
    found = twice({str(p.relative_to(ROOT)): p.read_text("utf-8") for p in sorted(files)})
    assert {name: places for name, places in found.items() if name not in SHARED} == {}
    assert SHARED.keys() <= found.keys()


def test_names_are_compared_without_underscores_and_aliases_count():
    first = "class _Plan: ...\nF32 = int\nT = TypeVar('T')\n"
    assert twice({"a": first, "b": "Plan = int | str\nF32 = int\nT = TypeVar('T')\n"}) == {
        "Plan": ["a", "b"]
    }
    assert twice({"a": "class A:\n    class B: ...\n\n\nclass B: ...\n"}) == {"B": ["a", "a"]}
