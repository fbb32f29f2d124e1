"""Tables that are made of facts in the repository.

They stand in a page of docs/ between ``<!-- table: NAME -->`` and ``<!-- end -->``, and are filled
in when the documentation is built; ``python tools/tables.py NAME`` prints one. Tables:
``supported`` (architectures and drafters of the trunks and plugins here), ``effort`` (what a
drafter cost to add, here and in other engines), ``architectures`` (those that llama.cpp's generator
writes: which run here, in how many lines, and what the others need), ``conversions`` (published
classes whose conversion is held by transformers' logits, and by llama.cpp's converter), ``modules``
(what each module of the package is for, as its docstring says), ``server_tests`` and
``server_reasons`` (tests of llama.cpp's server that were run against this one).
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mtpcore.declarations.spec import DrafterSpec, ModelSpec
from mtpcore.discovery.registry import load_registry

ROOT = Path(__file__).parents[1]

# Merged pull requests, counted by git: new and edited files, lines added. Where the engine already
# had the framework for such drafters the row says so, as ours have it.
OTHERS = (
    ("llama.cpp", "MTP, the first (22673)", 1, 53, 2226),
    ("llama.cpp", "EAGLE-3, the first (18039)", 1, 26, 1161),
    ("llama.cpp", "three chained heads, with the framework there (24340)", 0, 9, 168),
    ("llama.cpp", "a model and its MTP, with the framework there (25395)", 2, 14, 882),
    ("vLLM", "DeepSeek MTP (12755)", 2, 12, 727),
    ("vLLM", "EAGLE-3 (16937)", 1, 11, 359),
    ("SGLang", "NextN for DeepSeek (3582)", 2, 5, 437),
    ("SGLang", "EAGLE-3 (4247)", 1, 10, 385),
    ("transformers", "MTP (46229)", 0, 15, 534),
)


def supported() -> Iterable[str]:
    """Yield the table of architectures: who may convert to them, and what drafts for them."""
    known = load_registry("")  # first-party plugins alone
    yield "| architecture | published checkpoints | drafters | from |"
    yield "| --- | --- | --- | --- |"
    for name, spec in sorted(known.architectures.items()):
        heads = [
            one.name
            for one in known.drafters
            if name in one.fit.architectures and not one.variant_of
        ]
        yield _row(f"`{name}`", _checkpoints(spec), _code(heads), _origin(spec.plugin))
    for drafter in known.drafters:
        if drafter.standalone:
            files = _code(sorted(drafter.fit.architectures))
            targets = _code(sorted(drafter.fit.targets)) or "every architecture above"
            yield _row(
                f"{files}, a drafter's file for {targets}",
                _checkpoints(drafter),
                f"`{drafter.name}`",
                _origin(drafter.plugin),
            )


def _checkpoints(spec: ModelSpec | DrafterSpec) -> str:
    tables = (*([spec.checkpoint] if spec.checkpoint else []), *spec.layouts)
    return _code(sorted({name for table in tables for name in table.architectures}))


def _origin(plugin: str) -> str:
    folder = ROOT / "plugins" / plugin
    return f"`plugins/{plugin}`" if folder.is_dir() else "`mtpcore/models`"


def architectures() -> Iterable[str]:
    """Yield the table of what llama.cpp's generator writes."""
    known = load_registry("")
    with np.load(ROOT / "tests" / "data" / "llama_cpp" / "architectures.npz") as witness:
        files = sorted(key.split("/")[1] for key in witness if key.startswith("header/"))
    kinds: dict[str, list[str]] = {}
    for file in files:
        name, kind = file.rsplit("-", 1)
        kinds.setdefault(name, []).append("experts" if kind == "moe" else kind)
    path = ROOT / "benchmarks" / "results" / "llama_cpp_lines.json"
    theirs = json.loads(path.read_text("utf-8"))["lines"]
    yield "| architecture | files | here | lines here | lines in llama.cpp |"
    yield "| --- | --- | --- | --- | --- |"
    counted: dict[str, int] = {}
    for name, of in kinds.items():
        spec = known.architectures.get(name)
        here = _declared_in(spec) if spec else {}
        counted |= here if name not in here else {}
        needs = known.unsupported.get(name, "a declaration")
        runs = "runs" if spec else f"needs {needs}"
        ours = sum(here.values()) or ""
        yield _row(f"`{name}`", ", ".join(of), runs, ours, theirs[name])
    running = sum(theirs[name] for name in kinds if name in known.architectures)
    ours = f"{sum(counted.values()) + _n_lines(VARIANTS.read_text('utf-8')):,}"
    yield _row("all that run, each file once", "", "", ours, f"{running:,}")


def _declared_in(spec: ModelSpec) -> dict[str, int]:
    """Return the lines that are an architecture's own, by what they are.

    They are a declaration in the table of variants, the module of a family with layers of its own,
    or a plugin's package.
    """
    if (folder := ROOT / "plugins" / spec.plugin).is_dir():
        return {str(file): _n_lines(file.read_text("utf-8")) for file in folder.rglob("*.py")}
    for file in sorted((ROOT / "mtpcore" / "models").glob("*.py")):
        text, calls = _calls_in(file)
        for call in calls:
            named = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "name")]
            if file.stem in _NO_TRUNKS or spec.name not in map(_text, named):
                continue
            if file == VARIANTS:
                return {spec.name: _n_lines(ast.get_source_segment(text, call) or "")}
            return {str(file): _n_lines(text)}
    raise ValueError(f"{spec.name}: declared nowhere")


@cache
def _calls_in(file: Path) -> tuple[str, list[ast.Call]]:
    """Return a module's text and its calls."""
    text = file.read_text("utf-8")
    return text, [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]


VARIANTS = ROOT / "mtpcore" / "models" / "families.py"
_NO_TRUNKS = ("unsupported", "variant_heads")
"""Modules that name families and declare none."""


def _text(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _n_lines(text: str) -> int:
    """Count lines that are neither empty nor a comment alone."""
    lines = (line.strip() for line in text.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)


def conversions() -> Iterable[str]:
    """Yield the table of small checkpoints whose conversion the tests hold."""
    path = ROOT / "tests" / "data" / "published" / "families.json"
    known = load_registry("").architectures
    of_class = {
        name: architecture
        for architecture, spec in known.items()
        for table in (*([spec.checkpoint] if spec.checkpoint else []), *spec.layouts)
        for name in table.architectures
    }
    yield "| class | architecture | tensors and keys as llama.cpp's converter | logits as |"
    yield "| --- | --- | --- | --- |"
    for name, family in sorted(json.loads(path.read_text("utf-8")).items()):
        compared = "all the same" if "peer" in family else "not compared"
        peer = family.get("peer", {}).get("metadata", {})
        architecture = peer.get("general.architecture", of_class[name.split(",")[0]])
        witness = family.get("witness", "transformers")
        yield _row(f"`{name}`", f"`{architecture}`", compared, witness)
    without = {name for name, spec in known.items() if spec.checkpoint is None and not spec.layouts}
    if without:
        yield ""
        yield f"Without a table of names so far are {_code(sorted(without))}."


def effort() -> Iterable[str]:
    """Yield the table of what adding a drafter took."""
    yield "| engine | what was added | new files | edited files | lines added |"
    yield "| --- | --- | --- | --- | --- |"
    for place, inside in (("plugins", "mtpcore_*"), ("examples", "src/mtpcore_*")):
        for folder in sorted((ROOT / place).iterdir()):
            files = sorted(folder.glob(f"{inside}/*.py"))
            if files:
                lines = sum(_n_code_lines(file) for file in files)
                what = "trunks and heads" if place == "plugins" else "an example"
                yield _row("mtpcore", f"{folder.name}: {what}", len(files), 0, lines)
    for engine, what, new, edited, added in OTHERS:
        yield _row(engine, what, new, edited, f"{added:,}")


def modules() -> Iterable[str]:
    """Yield, for each folder of the package, a table of its modules."""
    paths = (path for ending in ("*.py", "*.pyx") for path in (ROOT / "mtpcore").rglob(ending))
    folders: dict[Path, list[Path]] = {}
    for path in sorted(paths):
        folders.setdefault(path.parent, []).append(path)
    for folder, files in sorted(folders.items()):
        yield f"### `{folder.relative_to(ROOT)}/`\n\n| module | what it is for |\n| --- | --- |"
        for file in files:
            if file.name != "__init__.py":
                yield _row(f"`{file.name}`", _purpose(file))
        yield ""


def _purpose(file: Path) -> str:
    """Return the first paragraph of a module's docstring."""
    said = re.search(r'^"""(.*?)(?:\n\n|""")', file.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    if said is None:
        raise ValueError(f"{file}: no docstring")
    return " ".join(said[1].split())


def _n_code_lines(file: Path) -> int:
    return sum(bool(line.strip()) for line in file.read_text().splitlines())


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def server_tests() -> Iterable[str]:
    """Yield the table of the tests of llama.cpp's server: how many pass, and what others are."""
    yield "| tests of | pass | of their model's text | meant | open | skipped |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, suite in _server_suites().items():
        counts = (suite["passed"], suite["text"], len(suite["meant"]), len(suite["open"]))
        yield _row(f"`{name}`", *map(str, counts), str(suite["skipped"]))


def server_reasons() -> Iterable[str]:
    """Yield the table of why tests of llama.cpp's server fail and are meant to, or do not pass."""
    yield "| what they look for | tests |"
    yield "| --- | --- |"
    suites = _server_suites().values()
    meant = Counter(why for suite in suites for why in suite["meant"].values())
    for why, n in meant.most_common():
        yield _row(why, str(n))
    left = Counter(test.partition("[")[0] for suite in suites for test in suite["open"])
    for test, n in left.most_common():
        yield _row(f"open: `{test}`", str(n))


def _server_suites() -> dict[str, Any]:
    path = ROOT / "benchmarks" / "results" / "llama_cpp_server_tests.json"
    suites: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return suites


TABLES: dict[str, Callable[[], Iterable[str]]] = {
    "supported": supported,
    "effort": effort,
    "architectures": architectures,
    "conversions": conversions,
    "modules": modules,
    "server_tests": server_tests,
    "server_reasons": server_reasons,
}


def filled(text: str) -> str:
    """Return a page with its tables made anew."""

    def fill(found: re.Match[str]) -> str:
        return "\n".join([found[1], *TABLES[found[2]](), "", "<!-- end -->"])

    return re.sub(r"(<!-- table: (\w+) -->\n)\n?.*?<!-- end -->", fill, text, flags=re.DOTALL)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=TABLES)
    print(*TABLES[parser.parse_args().name](), sep="\n")


if __name__ == "__main__":
    main()
