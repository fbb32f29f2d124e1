"""mtpcore and llama.cpp's own programs in processes of their own, in turn.

In one process, as ``cells.py`` has them, threads of one engine that still spin share the cores with
those of the other, and both models are in memory. Here each turn starts a program that loads the
file, warms up, and times itself: ``llama-bench`` and ``llama-batched-bench``, or
``python -m versus.alone``. Both ways differ in two more things: llama-bench takes logits of the
last of n rows only, and runs random tokens.

Drafts are not measured here: llama.cpp's programs choose tokens by themselves, and with random
weights none of their drafts would be accepted (see ``peer_speculation.py``).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from timing import Reader, once

import mtpcore
from versus.hold import Hold
from versus.results import Found, Ratio
from versus.work import Work

__all__ = ["CELLS", "FLASH", "measure_apart", "seconds_of_batched_bench"]

FLASH, REPACK = ("on", "off"), ("1", "0")
N_SEQUENCES = (1, 4, 8, 16, 32)
PROMPT, GENERATED = 64, 32  # of each of several sequences


class Task(NamedTuple):
    """Rows of one sequence, ``n_rows`` a batch, for ``n_tokens`` tokens after ``depth`` others."""

    cell: str
    n_rows: int
    n_tokens: int
    depth: int


TASKS = {
    "decode": [Task("decode", 1, 32, 512)],
    "verify": [Task(f"verify-{n}", n, n, 512) for n in (1, 4, 8)],
    "prefill": [Task("prefill", 512, 512, 0)],
    "depth": [
        Task(f"depth-{depth}{'' if n == 1 else f'-rows-{n}'}", n, 16 if n == 1 else n, depth)
        for depth in (4096, 8192)
        for n in (1, 4)
    ],
}
CELLS = (*TASKS, "sequences")


def measure_apart(
    name: str,
    path: Path,
    cells: Sequence[str],
    threads: int,
    pairs: int,
    program: Path,
    hold: Hold,
    read: Reader,
) -> Iterator[Found]:
    """Yield what was found of each cell; ``program`` is llama-bench.

    Many sequences need llama-batched-bench, which lies beside it. A first turn of all of
    llama.cpp's settings chooses the one that is compared. Decoding takes turns with reading
    memory, too, whose speed changes from minute to minute.
    """
    for cell in cells:
        if cell == "sequences":
            yield from _sequences(name, path, threads, pairs, program, hold)
            continue
        for task in TASKS[cell]:
            ours = _alone(path, threads, f"--rows={task.n_rows}", f"--tokens={task.n_tokens}",
                          f"--depth={task.depth}")  # fmt: skip
            theirs = {
                f"repack {repack}, fa {flash}": _bench(program, path, threads, task, repack, flash)
                for repack, flash in product(REPACK, FLASH)
            }
            with hold:
                best = min(theirs, key=lambda setting: _seconds_of_bench(theirs[setting]))
            turns = []
            for _ in range(pairs):
                with hold:
                    turns.append(
                        (_seconds_alone(ours), _seconds_of_bench(theirs[best]), once(read))
                    )
            mine, other, reading = map(list, zip(*turns, strict=True))
            found = Found(name, task.cell, task.n_tokens, mine, {best: other})
            if task.cell == "decode":
                found.more = _bandwidth_used(path, found, read, reading)
            yield found


def _bandwidth_used(
    path: Path, found: Found, read: Reader, seconds: Sequence[float]
) -> dict[str, float]:
    """Return the speed of reading in these turns, and what share of it our tokens reached."""
    with mtpcore.load_model(path, mtp=False) as model:
        n_bytes = Work.of(model).n_bytes(1) * found.n_tokens
    bounds = [one * n_bytes / read.n_bytes for one in seconds]
    return {
        "bandwidth": read.n_bytes / statistics.median(seconds),
        "share": Ratio.of(bounds, found.ours).median,
    }


def _sequences(
    name: str, path: Path, threads: int, pairs: int, program: Path, hold: Hold
) -> Iterator[Found]:
    """Yield one cell for each number of sequences, which all generate at once."""
    ours = {
        n: _alone(path, threads, f"--sequences={n}", f"--depth={PROMPT}", f"--tokens={GENERATED}")
        for n in N_SEQUENCES
    }
    theirs = program.with_name("llama-batched-bench")
    found: dict[int, dict[str, list[float]]] = {n: {} for n in N_SEQUENCES}
    mine: dict[int, list[float]] = {n: [] for n in N_SEQUENCES}
    for _ in range(pairs):
        with hold:
            for flash in FLASH:
                times = seconds_of_batched_bench(
                    theirs, path, threads, flash, N_SEQUENCES, PROMPT, GENERATED
                )
                for n, seconds in times.items():
                    found[n].setdefault(f"fa {flash}", []).append(seconds)
            for n, command in ours.items():
                mine[n].append(_seconds_alone(command))
    for n in N_SEQUENCES:
        yield Found(name, f"sequences-{n}", n * GENERATED, mine[n], found[n])


def _alone(path: Path, threads: int, *options: str) -> list[str]:
    return [sys.executable, "-m", "versus.alone", str(path), f"--threads={threads}", *options]


def _seconds_alone(command: list[str]) -> float:
    folder = Path(__file__).parent.parent
    return float(json.loads(_run(command, folder))["seconds"])


def _bench(
    program: Path, path: Path, threads: int, task: Task, repack: str, flash: str
) -> list[str]:
    prompt, generated = (0, task.n_tokens) if task.n_rows == 1 else (task.n_rows, 0)
    return [
        *(str(program), "-m", str(path), "-t", str(threads), "-o", "json", "-r", "3"),
        *("-p", str(prompt), "-n", str(generated), "-d", str(task.depth)),
        *("--repack", repack, "-fa", flash),
    ]


def _seconds_of_bench(command: list[str]) -> float:
    samples: list[int] = json.loads(_run(command))[0]["samples_ns"]
    return statistics.median(samples) / 1e9


def seconds_of_batched_bench(
    program: Path,
    path: Path,
    threads: int,
    flash: str,
    n_sequences: Sequence[int],
    prompt: int,
    generated: int,
) -> dict[int, float]:
    """Return what llama.cpp takes to decode so many tokens of each of so many sequences."""
    command = [
        *(str(program), "-m", str(path), "-t", str(threads), "-fa", flash),
        *("-c", str(max(n_sequences) * (prompt + generated))),
        *("-npp", str(prompt), "-ntg", str(generated)),
        *("-npl", ",".join(map(str, n_sequences)), "--output-format", "jsonl"),
    ]
    lines = [line for line in _run(command).splitlines() if line.startswith("{")]
    return {row["pl"]: row["t_tg"] for row in map(json.loads, lines)}


def _run(command: list[str], folder: Path | None = None) -> str:
    """Return what a program prints; llama.cpp's libraries lie beside its programs."""
    paths = f"{Path(command[0]).parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "LD_LIBRARY_PATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout
