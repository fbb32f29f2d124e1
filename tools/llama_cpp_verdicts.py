"""Each architecture in both programs: as llama.cpp's generator writes it, and quantised by it.

    python tools/llama_cpp_verdicts.py BIN LOGITS RESULT [--seed S]

``BIN`` has llama.cpp's ``test-llama-archs`` and ``llama-quantize``, ``LOGITS`` is
``llama_cpp_logits.cpp``, built as its first lines say; ``scripts/peer`` makes both. ``RESULT`` gets
a table: how far logits are apart, as the mean square of the differences beside that of the logits.
Both programs round activations to eight bits where matrices are quantised, so there the answer is
the same if both are no further apart than quantising moved llama.cpp's own.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from datetime import date
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtpcore import Batch, Context, load_model
from mtpcore.errors import MtpcoreError

NEAR = 1e-5
"""What other orders of sums explain."""
TYPES = ("Q8_0", "Q4_K_M")
N_TOKENS = 24

F64 = NDArray[np.float64]


def main() -> None:
    """Compare all, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bin", type=Path)
    parser.add_argument("logits", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--seed", type=int, default=1234)
    args = parser.parse_args()
    rows = ["| file | as written | " + " | ".join(TYPES) + " |", "| --- | --- | --- | --- |"]
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make = [args.bin / "test-llama-archs", "-s", str(args.seed), "-o", folder]
        subprocess.run(make, capture_output=True, check=True)
        for path in sorted(folder.glob("*.gguf")):
            said = compare(path, args.bin / "llama-quantize", args.logits)
            counts[said[0].split()[0]] = counts.get(said[0].split()[0], 0) + 1
            rows.append(f"| `{path.stem}` | " + " | ".join(said) + " |")
            print(path.stem, *said, sep="  ", flush=True)
            path.unlink()
    total = ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items()))
    head = f"# Architectures beside llama.cpp, {date.today()}\n\nSeed {args.seed}: {total}.\n\n"
    args.result.write_text(head + "\n".join(rows) + "\n")


def compare(path: Path, quantize: Path, program: Path) -> list[str]:
    """Return a verdict on a file, and on what ``llama-quantize`` makes of it in each type."""
    plain = peer_logits(program, path)
    said = [verdict(path, plain, NEAR)]
    for kind in TYPES:
        made = path.with_suffix(f".{kind}")
        command = [quantize, path, made, kind]
        done = subprocess.run([*map(str, command)], capture_output=True, check=False)
        found = peer_logits(program, made) if done.returncode == 0 else None
        if plain is None or found is None:
            said.append("llama.cpp fails")
        else:
            said.append(verdict(made, found, max(NEAR, apart(found, plain))))
        made.unlink(missing_ok=True)
    return said


def verdict(path: Path, wanted: F64 | None, near: float) -> str:
    """Say what a file is here, beside llama.cpp's logits of it."""
    try:
        with load_model(path, sidecars=False) as model:
            context = Context(model, n_ctx=N_TOKENS, kv_dtype="f32", threads=1)
            found = context.process(Batch.of(prompt(), outputs="all")).logits.astype(np.float64)
    except MtpcoreError:
        return "refused"
    if wanted is None:
        return "llama.cpp fails"
    if found.size != wanted.size:
        return "differs in size"
    far = apart(found.reshape(-1), wanted)
    return f"{'same' if far < near else 'differs'} {far:.0e}"


def apart(one: F64, other: F64) -> float:
    """Return the mean square of the differences, beside that of the second."""
    return float(np.square(one - other).mean() / np.square(other).mean())


def prompt() -> list[int]:
    """Return the tokens that both programs read."""
    return [int(token) for token in np.random.default_rng(7).integers(0, 128, N_TOKENS)]


def peer_logits(program: Path, path: Path) -> F64 | None:
    """Return llama.cpp's logits; None where it fails."""
    asked = " ".join(map(str, [N_TOKENS, *prompt()])).encode()
    done = subprocess.run([program, path], input=asked, capture_output=True, check=False)
    return None if done.returncode else np.frombuffer(done.stdout, np.float32).astype(np.float64)


if __name__ == "__main__":
    main()
