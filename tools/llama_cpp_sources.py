"""Read of llama.cpp's sources what it knows, and how many lines each architecture has there.

    python tools/llama_cpp_sources.py SOURCE "1 October 2026"

writes ``mtpcore/cli/llama_cpp.json``, which ``mtpcore inspect`` reads, and
``benchmarks/results/llama_cpp_lines.json``, which ``tools/tables.py`` reads. ``SOURCE`` is
llama.cpp's folder; the date is that of its commit.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Architecture(NamedTuple):
    """An architecture: its constant, its class, the classes that this one stands on."""

    constant: str
    name: str
    classes: tuple[str, ...]


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("date")
    args = parser.parse_args()
    models = _texts(args.source / "src" / "models")
    found = _architectures(args.source, models["models.h"])
    heads = {one.name: _head(one, models) for one in found}
    vocabulary = (args.source / "src" / "llama-vocab.cpp").read_text("utf-8")
    known = {
        "date": args.date,
        "architectures": sorted(one.name for one in found),
        "heads": sorted(name for name, kind in heads.items() if kind == "runs"),
        "skipped_heads": sorted(name for name, kind in heads.items() if kind == "skips"),
        "tokenizers": sorted({*re.findall(r'tokenizer_model == "([^"]+)"', vocabulary)}),
        "pre_tokenizers": sorted({*re.findall(r'tokenizer_pre == "([^"]+)"', vocabulary)}),
        "types": _types(args.source),
    }
    _write(ROOT / "mtpcore" / "cli" / "llama_cpp.json", known)
    sources = _texts(args.source / "src")
    lines = {one.name: _lines(one, models, sources) for one in found}
    _write(
        ROOT / "benchmarks" / "results" / "llama_cpp_lines.json",
        {"date": args.date, "lines": dict(sorted(lines.items()))},
    )


def _texts(folder: Path) -> dict[str, str]:
    """Return the sources of a folder by name."""
    return {path.name: path.read_text("utf-8") for path in sorted(folder.glob("*.[ch]*"))}


def _architectures(source: Path, header: str) -> list[Architecture]:
    """Return those that have a name and a class."""
    names = dict(
        re.findall(
            r'\{ (LLM_ARCH_\w+), +"([^"]+)"',
            (source / "src" / "llama-arch.cpp").read_text("utf-8"),
        )
    )
    parents = dict(re.findall(r"struct llama_model_(\w+) : public llama_model_(\w+)", header))
    cases = re.findall(
        r"case (LLM_ARCH_\w+):\s+return new llama_model_(\w+)\(",
        (source / "src" / "llama-model.cpp").read_text("utf-8"),
    )
    made = []
    for constant, one in cases:
        line = [one]
        while parents.get(line[-1], "base") != "base":
            line.append(parents[line[-1]])
        if constant in names and names[constant] != "clip":  # which no text model has
            made.append(Architecture(constant, names[constant], tuple(line)))
    return made


def _head(one: Architecture, models: dict[str, str]) -> str:
    """Say whether llama.cpp ``runs`` an architecture's NextN head, ``skips`` it, or has none."""
    of_class = {name: _files_of(name, models) for name in one.classes}
    builds = next(
        text for name, text in of_class.items() if f"llama_model_{name}::build_arch_graph" in text
    )
    if "make_unique<graph_mtp>" in builds:
        return "runs"
    return "skips" if any("nextn." in text for text in of_class.values()) else ""


def _files_of(name: str, models: dict[str, str]) -> str:
    """Return the sources that define what a class loads and builds."""
    defined = re.compile(rf" llama_model_{name}::(load_arch_\w+|build_arch_graph)\(")
    return "\n".join(text for text in models.values() if defined.search(text))


def _types(source: Path) -> list[str]:
    """Return the types of tensors that ggml has."""
    header = (source / "ggml" / "include" / "ggml.h").read_text("utf-8")
    found = re.findall(r"^\s+GGML_TYPE_(\w+) += \d+,", header, re.MULTILINE)
    return sorted({*found} - {"COUNT"})


def _lines(one: Architecture, models: dict[str, str], sources: dict[str, str]) -> int:
    """Count an architecture's lines: its class's file and struct, and where it is named besides."""
    own = one.classes[0]
    struct = re.search(rf"^struct llama_model_{own} .*?^\}};", models["models.h"], re.M | re.S)
    named = [
        line
        for name, text in sources.items()
        for line in text.splitlines()
        if re.search(rf"\b{one.constant}\b", line)
    ]
    return _count(_files_of(own, models)) + _count(struct[0] if struct else "") + len(named)


def _count(text: str) -> int:
    """Count lines that are neither empty nor a comment alone."""
    lines = (line.strip() for line in text.splitlines())
    return sum(bool(line) and not line.startswith("//") for line in lines)


def _write(path: Path, values: dict[str, object]) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
