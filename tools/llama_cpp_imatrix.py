"""Keep what ``llama-imatrix`` makes of some trained models and a text.

    python tools/llama_cpp_imatrix.py IMATRIX tests/data/llama_cpp

``IMATRIX`` is llama.cpp's program. The models are those of ``tests/data`` in F32, whose activations
nobody rounds, so that experts are routed to alike; keys and values are F32, too. The text is the
beginning of the documentation's glossary as it was.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.fixtures import model_file

from mtpcore.conversion.importance_file import read_sums

ROOT = Path(__file__).parents[1]
MODELS = ("glm-11", "ds-12", "qwen35moe-17")
N_CHUNKS, CHUNK_SIZE = 4, 64
N_CHARACTERS = 4000


def main() -> None:
    """Make and write all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    text = (ROOT / "docs" / "glossary.md").read_text()[:N_CHARACTERS]
    kept = {"text": np.array(text), "sizes": np.array([N_CHUNKS, CHUNK_SIZE])}
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "text.txt", Path(folder) / "made.gguf"
        given.write_text(text)
        for name in MODELS:
            command = [args.program.resolve(), "-m", model_file(name, "f32"), "-f", given]
            command += ["-o", made, "--chunks", str(N_CHUNKS), "-c", str(CHUNK_SIZE)]
            command += ["-ctk", "f32", "-ctv", "f32", "-fa", "off", "--process-output"]
            run = subprocess.run(command, check=True, capture_output=True, text=True)
            said = run.stdout + run.stderr
            perplexity = said.partition("PPL = ")[2].split()[0]
            kept[f"{name}/perplexity"] = np.array(float(perplexity))
            found = read_sums(made)
            for tensor, sums in found.sums.items():
                kept[f"{name}/sums/{tensor}"] = sums
                kept[f"{name}/counts/{tensor}"] = found.counts[tensor].astype(np.int32)
    np.savez_compressed(args.folder / "importance.npz", **kept)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
