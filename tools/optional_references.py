"""Compute what llama.cpp makes of the small models of ``tests/harness/optional_tensors.py``.

    python tools/optional_references.py PROGRAM tests/data/optional

``PROGRAM MODEL.gguf`` is ``llama_cpp_logits.cpp``, built as its first lines say. ``refs.npz`` gets
for each family the logits of all tokens, with keys and values in float32.
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

from harness.optional_tensors import OPTIONAL, TOKENS, write_optional


def main() -> None:
    """Compute and write all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    text = " ".join(map(str, [len(TOKENS), *TOKENS]))
    refs: dict[str, Any] = {}
    for family in OPTIONAL:
        with tempfile.TemporaryDirectory() as folder:
            path = write_optional(Path(folder), family)
            command = [args.program, path]
            made = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
        refs[family] = np.frombuffer(made.stdout, np.float32).reshape(len(TOKENS), -1)
    args.folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.folder / "refs.npz", **refs)


if __name__ == "__main__":
    main()
