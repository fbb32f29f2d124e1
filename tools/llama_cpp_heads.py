"""Keep what llama.cpp's heads compute of tiny models with a NextN block.

    python tools/llama_cpp_heads.py HEADS LOGITS tests/data/llama_cpp

``HEADS`` and ``LOGITS`` are ``llama_cpp_heads.cpp`` and ``llama_cpp_logits.cpp``, built as their
first lines say; the models are those of ``tests/harness/headed.py``. Where llama.cpp skips a head,
its logits are those of the block as a layer, which reads rows that mtpcore's trunk has given.
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
from harness.headed import HEADED, SKIPPED, joined_rows, write_block_as_layer, write_headed

from mtpcore import Batch, Context, load_model


def main() -> None:
    """Make and write all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("heads", type=Path)
    parser.add_argument("logits", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    text, kept = tokens(128), dict[str, Any]()
    with tempfile.TemporaryDirectory() as temporary:
        for architecture in HEADED:
            path, program, ids = Path(temporary) / "model.gguf", args.heads, text
            write_headed(architecture, path)
            if architecture in SKIPPED:
                program, ids = args.logits, list(range(len(text) - 1))
                _write_block_as_layer(architecture, path, text)
            asked = " ".join(map(str, [len(ids), *ids])).encode()
            done = subprocess.run([program, path], input=asked, capture_output=True, check=True)
            rows = np.frombuffer(done.stdout, np.float32).reshape(len(text) - 1, -1)
            kept[architecture] = rows[-N_ROWS:]
    np.savez_compressed(args.folder / "heads.npz", **kept)


def _write_block_as_layer(architecture: str, path: Path, text: list[int]) -> None:
    """Write over a model with a head the one whose layer is the head's block."""
    model = load_model(path)
    trunk = Context(model, 64, kv_dtype="f32", threads=1, taps=["hidden"])
    hidden = trunk.process(Batch.of(text)).tap("hidden")
    model.close()
    write_block_as_layer(architecture, joined_rows(architecture, hidden, text), path)


if __name__ == "__main__":
    main()
