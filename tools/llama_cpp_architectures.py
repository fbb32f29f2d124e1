"""Keep what llama.cpp computes of a tiny model of each of its architectures.

    python tools/llama_cpp_architectures.py GENERATE LOGITS tests/data/llama_cpp

``GENERATE`` is llama.cpp's ``test-llama-archs``, which writes the models, ``LOGITS`` is
``llama_cpp_logits.cpp``, built as its first lines say. Of each model the header is kept, weights
are made anew by ``tests/harness/architectures.py``, and the logits are kept that llama.cpp computes
of that: of the last tokens of a prompt, and of those that it writes greedily after it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.architectures import N_ROWS, size_of_vocabulary, tokens, write_model
from harness.peer_headers import header_of


def main() -> None:
    """Make and write all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("generate", type=Path)
    parser.add_argument("logits", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    kept: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        subprocess.run([args.generate, "-o", folder], capture_output=True, check=True)
        for path in sorted(folder.glob("*.gguf")):
            head = header_of(path)
            write_model(head, path)
            text = tokens(size_of_vocabulary(head))
            for _ in range(N_ROWS):
                text.append(int(logits_of(args.logits, path, text)[-1].argmax()))
            kept[f"header/{path.stem}"] = np.frombuffer(head, np.uint8)
            kept[f"logits/{path.stem}"] = logits_of(args.logits, path, text)[-2 * N_ROWS :]
            path.unlink()
    args.folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.folder / "architectures.npz", **kept)


def logits_of(program: Path, path: Path, text: list[int]) -> NDArray[np.float32]:
    """Return llama.cpp's logits of a text, float32[n, n_vocab]."""
    asked = " ".join(map(str, [len(text), *text])).encode()
    done = subprocess.run([program, path], input=asked, capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.float32).reshape(len(text), -1)


if __name__ == "__main__":
    main()
