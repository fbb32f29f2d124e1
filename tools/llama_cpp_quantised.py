"""Keep digests of what ``llama-quantize`` makes of some models, and of the types that it chooses.

    python tools/llama_cpp_quantised.py QUANTIZE tests/data/llama_cpp [--snapshots FOLDER]

``QUANTIZE`` is llama.cpp's program, of an x86-64 build. Models and importance matrices are those of
``tests/harness/quantised.py``, in every mix with the matrix and without; types are those of each
architecture that is known here. With ``--snapshots`` nothing is kept: the types that are chosen
here are held against llama.cpp's own table of published models, ``tests/snapshots``.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.architectures import NAMES, header, write_model
from harness.quantised import (
    CASES,
    HEADED,
    IMPORTANCE,
    MODEL,
    digest,
    digest_of_types,
    write_case,
    write_importance,
)

from mtpcore.conversion.mixes import (
    ALIASES,
    MIXES,
    Described,
    ModelShape,
    TypeRules,
    choose_types,
)
from mtpcore.gguf import open_model_file
from mtpcore.gguf.types import F32, type_name

OF_TYPES = ("q2_k", "q3_k_m", "q3_k_l", "q4_0", "q4_k_s", "q4_k_m", "q5_k_m", "iq4_xs", "mxfp4_moe")
"""Mixes whose rules differ."""


def quantise(program: Path, folder: Path, mix: str, *options: str) -> bytes:
    """Return the file that it writes of the folder's model."""
    command = [str(program.resolve()), "--allow-requantize", *options, MODEL, "made.gguf"]
    run = [*command, mix.upper(), "2"]
    subprocess.run(run, check=True, capture_output=True, cwd=folder)
    return (folder / "made.gguf").read_bytes()


def files(program: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield names and digests of whole files."""
    for case in (*CASES, HEADED):
        model = write_case(case, folder / MODEL)
        for mix in MIXES:
            write_importance(model, folder / IMPORTANCE, of_all=mix == "q2_k_s")
            if mix != "q2_k_s":
                yield f"{case}/{mix}/plain", digest(quantise(program, folder, mix))
            weighted = quantise(program, folder, mix, "--imatrix", IMPORTANCE)
            yield f"{case}/{mix}/weighted", digest(weighted)


def types(program: Path, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each architecture's digests of types, by mix."""
    for name in NAMES:
        if name == "glm5-next-moe":  # it has rules of its own there, and no graph here
            continue
        write_model(header(name), folder / MODEL)
        found = {}
        for mix in OF_TYPES:
            (folder / "types.gguf").write_bytes(quantise(program, folder, mix))
            with open_model_file(folder / "types.gguf", to_look_at=True) as file:
                found[mix] = digest_of_types({n: t.type for n, t in file.tensors.items()})
        yield name, found


def wrong_types(snapshot: Path) -> list[str]:
    """Return where other types are chosen than a snapshot has, of tensors that it names."""
    text = snapshot.read_text()
    said = {key: int(value) for key, value in re.findall(r"(n_\w+)=(\d+)", text)}
    sections = re.findall(r"^\[(\w+)\] (\w+)\n((?:\S+ \w+\n)*)", text + "\n", re.MULTILINE)
    names = {line.split()[0] for _, _, lines in sections for line in lines.splitlines()}
    n_experts = said.get("n_expert", 0)
    # Shapes are not in it; what is no Q6_K in a file of that type alone has rows of other lengths.
    (narrow,) = ({*re.findall(r"(\S+) q8_0", lines)} for one, _, lines in sections if one == "Q6_K")
    tensors = [
        Described(
            name, ((n_experts,) if "_exps" in name or "_k_b" in name else ()) + (256, columns), F32
        )
        for name in names
        for columns in [32 if name in narrow else 256]
    ]
    architecture = "llama" if "llama" in snapshot.name else "another"
    model = ModelShape(architecture, said["n_layer"], said["n_head"], said["n_head_kv"], n_experts)
    wrong = []
    for section, default, lines in sections:
        mix = ALIASES.get(section.lower(), section.lower())
        if mix not in MIXES:
            continue
        wanted = dict.fromkeys(names, default) | dict(line.split() for line in lines.splitlines())
        rules = TypeRules(weighted=names if mix == "q2_k_s" else None)
        for name, kind in choose_types(tensors, mix, model, rules).items():
            if type_name(kind).lower() != wanted[name].lower():
                wrong.append(f"{snapshot.stem} {mix} {name}: {type_name(kind)}, {wanted[name]}")
    return wrong


def main() -> None:
    """Make and write all, or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--snapshots", type=Path)
    args = parser.parse_args()
    if args.snapshots:
        snapshots = sorted(args.snapshots.glob("*.schema"))
        wrong = [line for one in snapshots for line in wrong_types(one)]
        print(*wrong, f"{len(snapshots)} models, {len(wrong)} other types", sep="\n")
        sys.exit(bool(wrong))
    with tempfile.TemporaryDirectory() as made:
        kept = {
            "files": dict(files(args.program, Path(made))),
            "types": dict(types(args.program, Path(made))),
        }
    (args.folder / "quantised.json").write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
