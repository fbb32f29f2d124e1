"""What a machine can do, read from its own files and measured; and what would make it faster."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np

from mtpcore._ext._cpu import available_isas, isa
from mtpcore.backends.threads import default_threads
from mtpcore.backends.workers import Workers
from mtpcore.cli.terminal import spell_bytes

__all__ = ["Finding", "examine"]

_WATCHED = 0.5  # seconds in which others are watched
_ROUNDS = 4  # of reading memory, of which the fastest counts
_LEAST, _MOST = 64 << 20, 2 << 30  # bytes that are read
_BUSY, _STOLEN = 0.15, 0.02
"""Shares of the processors that others take without a word about it."""
_BEST = {"x86_64": ("avx512", "amx"), "aarch64": ("i8mm",)}
"""Instruction sets to which others come close."""


class Finding(msgspec.Struct, frozen=True):
    """One line about a machine.

    Attributes
    ----------
    name : str
    said : str
        What was found.
    values : dict
        The same as numbers and names.
    advice : str
        What would make it faster; empty where nothing is known.
    """

    name: str
    said: str
    values: dict[str, float | int | str | None]
    advice: str = ""


def examine(root: Path = Path("/"), *, measures: bool = True) -> Iterator[Finding]:
    """Yield what is found, one line after the other.

    Parameters
    ----------
    root : path
        Below which the system's files are.
    measures : bool
        Whether to watch what else runs, and how fast memory is read: about two seconds.
    """
    yield _processor(root)
    named = os.environ.get("MTPCORE_ISA")
    yield _instructions(available_isas(), isa(), named, platform.machine())
    yield _threads(root, default_threads())
    if (governor := _governor(root)) is not None:
        yield governor
    yield _memory(root)
    if measures:
        yield _neighbours(root, time.sleep)
        yield _speed(root, default_threads())
    if (pages := _huge_pages(root)) is not None:
        yield pages
    if (nodes := _nodes(root)) is not None:
        yield nodes
    yield _gpus(root, find_spec("cuda") is not None)


def _processor(root: Path) -> Finding:
    """Return what the processor is called."""
    text = _read(root / "proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = named[1].strip() if named else platform.processor() or "not named"
    return Finding("processor", f"{name}, {platform.machine()}", {"name": name})


def _instructions(there: Sequence[str], used: str, named: str | None, machine: str) -> Finding:
    """Return which kernels are used.

    ``there`` are those that the machine runs, the best last; ``named`` those that were asked for.
    """
    advice = ""
    if named and used != there[-1]:
        advice = f"MTPCORE_ISA={named} holds back {there[-1]}: unset it"
    elif machine in _BEST and there[-1] not in _BEST[machine]:
        advice = f"a processor with {_BEST[machine][0]} computes more at a time"
    said = f"{used}, of {', '.join(there)}"
    return Finding("instruction set", said, {"used": used, "best": there[-1]}, advice)


def _threads(root: Path, granted: int) -> Finding:
    """Return how many processors there are, and how many this process may use."""
    folders = [*(root / "sys/devices/system/cpu").glob("cpu[0-9]*/topology")]
    cores = {
        (_read(one / "physical_package_id").strip(), _read(one / "core_id").strip())
        for one in folders
    }
    n_logical = len(folders) or os.cpu_count() or 1
    n_cores = len(cores) or n_logical
    said, advice = f"{granted} of {n_logical} processors", ""
    if granted < n_logical:
        advice = "affinity or a CPU quota grants no more: ask for them where it was set"
    elif n_cores < n_logical:
        said += f", of {n_cores} cores"
        advice = f"two on one core share its units: try -t {n_cores}"
    values: dict[str, float | int | str | None] = {
        "granted": granted,
        "logical": n_logical,
        "cores": n_cores,
    }
    return Finding("threads", said, values, advice)


def _governor(root: Path) -> Finding | None:
    """Return how clock rates are chosen; None where the machine does not say, as virtual ones."""
    paths = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    found = {text for path in paths if (text := _read(path).strip())}
    if not found:
        return None
    slow = "powersave" in found and not _read(
        root / "sys/devices/system/cpu/intel_pstate/status"
    ).startswith("active")
    advice = "cpupower frequency-set -g performance keeps clock rates high" if slow else ""
    said = ", ".join(sorted(found))
    return Finding("clock rates", said, {"governor": said}, advice)


def _memory(root: Path) -> Finding:
    """Return how much memory there is, and how much of it a model may take."""
    sizes = {
        name: 1024 * int(kib)
        for name, kib in re.findall(r"^(\w+):\s+(\d+) kB", _read(root / "proc/meminfo"), re.M)
    }
    total, free = sizes.get("MemTotal", 0), sizes.get("MemAvailable", 0)
    swapped = sizes.get("SwapTotal", 0) - sizes.get("SwapFree", 0)
    advice = ""
    if total and swapped > total // 50:
        advice = f"{spell_bytes(swapped)} are swapped out: what is swapped is a thousandfold slower"
    said = f"{spell_bytes(free)} of {spell_bytes(total)} free" if total else "not known"
    values: dict[str, float | int | str | None] = {
        "total": total,
        "available": free,
        "swapped": swapped,
    }
    return Finding("memory", said, values, advice)


def _neighbours(root: Path, wait: Callable[[float], None]) -> Finding:
    """Return which share of the processors others took while this process waited."""
    before = _times(root)
    wait(_WATCHED)
    after = _times(root)
    spent = [b - a for a, b in zip(before[:8], after[:8], strict=False)]
    total = sum(spent)
    if len(spent) < 8 or total <= 0:
        return Finding("neighbours", "not known", {"busy": None, "stolen": None})
    stolen = spent[7] / total
    busy = (total - spent[3] - spent[4] - spent[7]) / total
    advice = ""
    if stolen > _STOLEN:
        advice = "the host gives processors to other guests: measure again later, or elsewhere"
    elif busy > _BUSY:
        advice = "threads wait for the slowest: stop what else runs, or make -t smaller"
    said = f"others take {100 * busy:.0f} % of the processors, other guests {100 * stolen:.0f} %"
    return Finding("neighbours", said, {"busy": busy, "stolen": stolen}, advice)


def _times(root: Path) -> list[int]:
    """Return what the processors did so far: user, nice, system, idle, iowait, irq, softirq, steal.

    Times of guests, which follow, are part of the first two.
    """
    first = _read(root / "proc/stat").partition("\n")[0].split()
    return [int(word) for word in first[1:]] if first[:1] == ["cpu"] else []


def _speed(root: Path, n_threads: int) -> Finding:
    """Return how fast memory is read, more of it than caches hold."""
    caches = (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = [
        int(text[:-1]) * units[text[-1]]
        for path in caches
        if re.fullmatch(r"\d+[KMG]", text := _read(path).strip())
    ]
    free = _memory(root).values["available"]
    room = int(free or 0) // 4 if free else _LEAST
    n_bytes = max(_LEAST, min(2 * max(sizes, default=0), _MOST, room))
    speed = max(_read_all(n_bytes, n_threads))
    said = f"at least {speed / 1e9:.1f} GB/s with {n_threads} threads"
    if sizes and n_bytes < 2 * max(sizes):
        said += ", some of it from caches"
    rate = speed / 4e9
    advice = f"4 GB of weights are read {rate:.1f} times a second: drafts give more tokens a pass"
    return Finding("memory speed", said, {"bytes_per_second": speed}, advice)


def _read_all(n_bytes: int, n_threads: int) -> list[float]:
    """Read so much memory several times; return the bytes per second of each."""
    parts = np.array_split(np.ones(n_bytes, np.uint8), n_threads)
    speeds = []
    with Workers(n_threads) as workers:
        for _ in range(_ROUNDS):
            begin = time.perf_counter()
            workers.run_all([partial(np.maximum.reduce, part) for part in parts], lambda: None)
            speeds.append(n_bytes / (time.perf_counter() - begin))
    return speeds


def _huge_pages(root: Path) -> Finding | None:
    """Return whether weights get pages of 2 MB; None where the system does not say."""
    path = "sys/kernel/mm/transparent_hugepage/enabled"
    chosen = re.search(r"\[(\w+)\]", _read(root / path))
    if chosen is None:
        return None
    advice = f"as root: echo madvise > /{path}" if chosen[1] == "never" else ""
    said = "never" if advice else f"where they are asked for ({chosen[1]})"
    return Finding("huge pages", said, {"mode": chosen[1]}, advice)


def _nodes(root: Path) -> Finding | None:
    """Return how many memories of their own the processors have; None: one."""
    n = len([*(root / "sys/devices/system/node").glob("node[0-9]*")])
    if n < 2:
        return None
    advice = "memory of another node is slower: numactl --cpunodebind=0 --membind=0 mtpcore ..."
    return Finding("memory nodes", str(n), {"nodes": n}, advice)


def _gpus(root: Path, has_extra: bool) -> Finding:
    """Return which GPUs the driver lists."""
    named = [
        match[1].strip()
        for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
        if (match := re.search(r"^Model:\s*(.+)$", _read(path), re.MULTILINE))
    ]
    advice = ""
    if named:
        advice = "--backend cuda computes on it"
        advice += "" if has_extra else ', after pip install "mtpcore[cuda]"'
    said = ", ".join(named) or "none that CUDA knows"
    return Finding("GPU", said, {"n": len(named)}, advice)


def _read(path: Path) -> str:
    """Return a file's text, none where it cannot be read."""
    try:
        return path.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return ""
