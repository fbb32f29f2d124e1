"""Keep the headers of the files that llama.cpp makes of small models of every family.

    python tools/llama_cpp_headers.py QUANTIZE SAVE tests/data/llama_cpp

``QUANTIZE`` is llama.cpp's ``llama-quantize``, ``SAVE`` is ``llama_cpp_save.cpp``, built as its
first lines say. The models are those of ``tests/harness/peer_headers.py``; they are quantised to
Q8_0, as one file and split (``--keep-split``), and to Q4_K_M where rows are wide enough, and saved.
Where the weights can be made anew, a header with them must be llama.cpp's file, byte for byte.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.peer_headers import CASES, blocks_of, header_of, write_filled, write_original

from mtpcore.gguf import open_model_file


def main() -> None:
    """Make and write all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("quantize", type=Path)
    parser.add_argument("save", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    headers: dict[str, Any] = {}
    for way, family in CASES:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            original = write_original(folder, way, family)
            made = folder / "made.gguf"
            command = [args.save, original, made]
            if way != "saved":
                kind, *split = way.split()
                option = ["--keep-split"] if split else []
                made = folder / "made" if split else made
                command = [args.quantize, *option, original, made, kind]
            subprocess.run(command, capture_output=True, check=True)
            files = sorted(folder.glob("made*.gguf"))
            check(original, files, folder, exact=way != "Q4_K_M")
            for i, file in enumerate(files):
                headers[f"{way}/{family}/{i}"] = np.frombuffer(header_of(file), np.uint8)
    args.folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.folder / "headers.npz", **headers)


def check(original: Path, files: list[Path], folder: Path, *, exact: bool) -> None:
    """Fail where a header with the weights made anew is another file than llama.cpp's."""
    with open_model_file(original) as source, open_model_file(files[0]) as found:
        blocks = blocks_of(source, {name: t.type for name, t in found.tensors.items()})
    for file in files:
        filled = write_filled(header_of(file), blocks, folder / "filled.gguf").read_bytes()
        if exact and filled != file.read_bytes():
            raise SystemExit(f"{file}: not the bytes that were expected")


if __name__ == "__main__":
    main()
