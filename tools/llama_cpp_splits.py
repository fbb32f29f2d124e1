"""Keep digests of what ``llama-gguf-split`` and ``llama-quantize --keep-split`` make of models.

    python tools/llama_cpp_splits.py FOLDER_OF_PROGRAMS tests/data/llama_cpp

The programs are llama.cpp's, of an x86-64 build; models are those of ``tests/harness/splits.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.splits import CASES, MIXES, WAYS, digest, write


def main(programs: Path, out: Path) -> None:
    """Make and write all."""
    kept: dict[str, str] = {}
    for case in CASES:
        for way, (options, _) in WAYS.items():
            with tempfile.TemporaryDirectory() as made:
                model = write(case, Path(made) / "model.gguf")
                folders = [Path(made) / name for name in ("split", "joined", "quantised")]
                for folder in folders:
                    folder.mkdir()
                split, joined, quantised = folders
                program = str((programs / "llama-gguf-split").resolve())
                run(program, *options, str(model), str(split / "x"))
                kept[f"split/{case}/{way}"] = digest(split)
                first = str(min(split.iterdir()))
                run(program, "--merge", first, str(joined / "x.gguf"))
                kept[f"joined/{case}/{way}"] = digest(joined)
                program = str((programs / "llama-quantize").resolve())
                for mix in MIXES if len([*split.iterdir()]) > 1 else ():
                    for path in quantised.iterdir():
                        path.unlink()
                    target = str(quantised / "q.gguf")
                    run(program, "--allow-requantize", "--keep-split", first, target, mix.upper())
                    kept[f"{mix}/{case}/{way}"] = digest(quantised)
    (out / "splits.json").write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")


def run(*command: str) -> None:
    """Run a program that must not fail."""
    subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
