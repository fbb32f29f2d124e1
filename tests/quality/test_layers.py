"""The house: imports go down only, the core names no architecture.

Read from source text and syntax trees, so that nothing needs to be built.
"""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "mtpcore"

STOREYS = [
    "version errors",
    "system",
    "_ext",
    "boundary",
    "acts declarations",
    "gguf",
    "graph",
    "memory",
    "backends sampling",
    "runtime",
    "links",
    "drafting",
    "cross",
    "data hub",
    "discovery",
    "models",
    "plugin",
    "conversion decoding evaluation",
    "testing lm",
    "names calibration fitting serving",
    "cluster",
    "cli",
    "__main__",
    "__init__",
]
"""Rooms from the ground up; those of one storey do not import each other."""

FLOOR = {name: i for i, storey in enumerate(STOREYS) for name in storey.split()}

ARCHITECTURE = re.compile(
    r"glm|(?<!o)llama(?!\.?cpp|-cpp|_cpp)|qwen|deepseek|mimo|eagle|medusa|dflash|gemma|mistral|gpt.?oss"
    r"|\bm?t5\b|csm|\bpard|\bxpress|dspark|domino|qwen_tts",
    re.I,
)
FORMAT_CONSTANTS = {
    "gguf/pretokenizers.py": "ids by which model files name pre-tokenisers",
    "gguf/vocabulary.py": "names by which model files name kinds of vocabulary",
    "conversion/mixes.py": "architectures for which llama.cpp's mixes make exceptions",
    "conversion/tokenizer.py": "names by which model files name kinds of vocabulary",
    "conversion/unigram.py": "names by which model files name kinds of vocabulary",
}
"""Files below and beside ``models/`` that may hold such names, and why."""


def sources(*patterns, below=CORE):
    return sorted(p for pattern in patterns for p in below.rglob(pattern))


def relative(path):
    return str(path.relative_to(CORE))


def storey_of(module):
    """Return the floor of ``mtpcore.x.y``; the package itself is the roof."""
    parts = module.split(".")
    return FLOOR[parts[1] if len(parts) > 1 else "__init__"]


def imported(path, of_packages=False):
    """Yield every module of mtpcore that a Python file imports, wherever in it.

    With ``of_packages`` it is every name instead: ``from mtpcore.discovery import hookspecs``.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if of_packages or node.module == "mtpcore":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def higher(path):
    """Return the modules that a file imports from above, or from beside its room."""
    mine, room = storey_of(module_of(path)), module_of(path).split(".")[1:2]
    return [
        name
        for name in imported(path)
        if name.split(".")[0] == "mtpcore"
        and (storey_of(name) > mine or (storey_of(name) == mine and name.split(".")[1:2] != room))
    ]


def test_imports_go_down_only():
    found = {relative(path): higher(path) for path in sources("*.py", "*.pyi")}
    assert {path: names for path, names in found.items() if names} == {}


def dependencies():
    """Return by module what it imports, of the modules that there are; types alone count too."""
    modules = {module_of(path): path for path in sources("*.py")}
    arrows = {}
    for name, path in modules.items():
        texts = [one for one in (path, path.with_suffix(".pyi")) if one.exists()]
        names = [one for text in texts for one in imported(text, of_packages=True)]
        arrows[name] = {one for one in names if one in modules} - {name}
        arrows[name] |= {
            one.rpartition(".")[0] for one in names if one not in modules
        } & modules.keys() - {name}
    return arrows


def test_no_circle():
    list(TopologicalSorter(dependencies()).static_order())


def test_a_circle_is_seen():
    arrows = dependencies()
    lowest = next(iter(arrows["mtpcore.runtime.context"]))
    arrows[lowest] = {"mtpcore.runtime.context"}
    with pytest.raises(CycleError, match=r"runtime\.context"):
        list(TopologicalSorter(arrows).static_order())


def test_every_module_has_a_storey():
    found = {p.stem for p in CORE.iterdir() if p.suffix == ".py"}
    found |= {p.name for p in CORE.iterdir() if (p / "__init__.py").exists()}
    assert found <= FLOOR.keys()


CIMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import|c?import\s+([\w.]+))", re.M)
MAY_CIMPORT = re.compile(
    r"(libc|cpython|cython|numpy|mtpcore\._ext|mtpcore\.errors|mtpcore\.system)(\.|$)"
)


@pytest.mark.parametrize("path", sources("*.pyx", "*.pxd"), ids=relative)
def test_compiled_floor_knows_only_itself(path):
    names = [a or b for a, b in CIMPORT.findall(path.read_text())]
    assert [n for n in names if not MAY_CIMPORT.match(n) and n.split(".")[0] == "mtpcore"] == []
    cimports = re.findall(
        r"^\s*(?:from\s+([\w.]+)\s+cimport|cimport\s+([\w.]+))", path.read_text(), re.M
    )
    assert [a or b for a, b in cimports if not MAY_CIMPORT.match(a or b)] == []


TEXTS = sources("*.py", "*.pyi", "*.pyx", "*.pxd", "*.c", "*.h", "*.inc", "*.cu")


def test_core_names_no_architecture():
    found = {
        relative(path): {one.group().lower() for one in ARCHITECTURE.finditer(path.read_text())}
        for path in TEXTS
        if relative(path).split("/")[0] != "models"
    }
    named = {path: names for path, names in found.items() if names}
    assert {path: names for path, names in named.items() if path not in FORMAT_CONSTANTS} == {}
    assert set(FORMAT_CONSTANTS) <= set(named), "needs no exception any more"


AUTHORS = [
    p
    for folder in ("plugins", "examples")
    for p in sources("*.py", below=ROOT / folder)
    if "tests" not in p.relative_to(ROOT).parts
]


def test_plugins_import_only_the_one_module_for_authors():
    found = {
        str(path.relative_to(ROOT)): name
        for path in AUTHORS
        for name in imported(path)
        if name.split(".")[0] == "mtpcore" and name != "mtpcore.plugin"
    }
    assert found == {}


def test_only_the_cuda_backend_imports_cuda():
    users = {
        relative(path)
        for path in sources("*.py")
        if any(name.split(".")[0] == "cuda" for name in imported(path))
    }
    assert all(user.startswith("backends/cuda") for user in users)


def test_the_rules_see_violations(tmp_path):
    """The checks above on planted faults."""
    planted = tmp_path / "planted.py"
    planted.write_text("def f():\n    from mtpcore import cross\n    import mtpcore.cli.main\n")
    assert [storey_of(name) > FLOOR["graph"] for name in imported(planted)] == [True, True]
    for name in ("Qwen3", "CSM", "PARD", "XPress", "DSpark", "Domino", "mtpcore_qwen_tts"):
        assert ARCHITECTURE.search(f"a {name} head")
    assert not ARCHITECTURE.search("a compressed expression")
    assert not ARCHITECTURE.search("as llama.cpp does")
    assert not MAY_CIMPORT.match("mtpcore.runtime.context")
