"""Seconds from nothing to the first token of a 1 GB file, page cache warm.

``python benchmarks/load.py`` generates the file once and loads it in fresh processes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import synthetic
from timing import Sample

CHILD = """
import sys, time
begin = time.perf_counter()
import mtpcore
imported = time.perf_counter()
context = mtpcore.Context(mtpcore.load_model(sys.argv[1]), 512, threads=int(sys.argv[2]))
context.process(mtpcore.Batch.of([5])).logits
print(imported - begin, time.perf_counter() - imported)
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-r", "--repetitions", type=int, default=5)
    given = parser.parse_args()
    path = synthetic.write("llama-1b", given.folder / "mtpcore-llama-1b.gguf")
    path.read_bytes()
    imports, loads = Sample(), Sample()
    for _ in range(given.repetitions):
        command = [sys.executable, "-c", CHILD, str(path), str(given.threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        first, second = map(float, done.stdout.split())
        imports.append(first)
        loads.append(second)
    print(f"{path} ({path.stat().st_size / 1e9:.2f} GB)")
    print(f"import mtpcore           {imports}")
    print(f"load, Context, 1st token {loads}")


if __name__ == "__main__":
    main()
