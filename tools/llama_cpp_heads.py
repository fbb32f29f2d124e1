"""Keep what llama.cpp's heads compute of tiny models with a NextN block.

    python tools/llama_cpp_heads.py PROGRAM tests/data/llama_cpp

``PROGRAM`` is ``llama_cpp_heads.cpp``, built as its first lines say; the models are those of
``tests/harness/headed.py``.
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

from harness.architectures import N_ROWS, tokens
from harness.headed import HEADED, write_headed


def main() -> None:
    """Make and write all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    text, kept = tokens(128), dict[str, Any]()
    with tempfile.TemporaryDirectory() as temporary:
        for architecture in HEADED:
            path = write_headed(architecture, Path(temporary) / "model.gguf")
            asked = " ".join(map(str, [len(text), *text])).encode()
            done = subprocess.run(
                [args.program, path], input=asked, capture_output=True, check=True
            )
            rows = np.frombuffer(done.stdout, np.float32).reshape(len(text) - 1, -1)
            kept[architecture] = rows[-N_ROWS:]
    np.savez_compressed(args.folder / "heads.npz", **kept)


if __name__ == "__main__":
    main()
