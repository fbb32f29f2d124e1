"""The machine of a measurement: processor, system, versions, and how busy it was."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from mtpcore._ext import _cpu

__all__ = ["Watch", "describe"]

TELLING = re.compile(r"avx|amx|fma|f16c|vnni|bf16")


def describe() -> dict[str, Any]:
    """Return what stays the same from run to run."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "flags": " ".join(filter(TELLING.search, _field("/proc/cpuinfo", "flags").split())),
        "memory_gb": round(int(_field("/proc/meminfo", "MemTotal").split()[0]) / 1e6),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "isa": _cpu.isa(),
        "fetch": _cpu.fetch(),
        "llama_cpp": _peer(),
    }


class Watch:
    """How busy the machine was from now until asked."""

    def __init__(self) -> None:
        self._ticks = _ticks()

    def note(self, command: list[str]) -> dict[str, Any]:
        """Return the date, the code's version, the load average and the share of stolen time."""
        spent = [b - a for a, b in zip(self._ticks, _ticks(), strict=True)]
        return {
            "command": " ".join([*_preloaded(), Path(command[0]).name, *command[1:]]),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": _commit(),
            "load": os.getloadavg()[0],
            "steal": spent[7] / max(1, sum(spent)),
        }


def _preloaded() -> list[str]:
    """Return the libraries that the run was started with, as they may change either engine."""
    names = os.environ.get("LD_PRELOAD", "")
    return [f"LD_PRELOAD={Path(names).name}"] if names else []


def _field(path: str, name: str) -> str:
    """Return what a file of the system says of a name; empty where it does not."""
    try:
        text = Path(path).read_text("utf-8")
    except OSError:
        return ""
    found = re.search(rf"^{name}\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1] if found else ""


def _ticks() -> list[int]:
    try:
        line = Path("/proc/stat").read_text("utf-8").split("\n", 1)[0]
    except OSError:
        return [0] * 8
    return [int(word) for word in line.split()[1:9]]


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        )
    except (OSError, subprocess.CalledProcessError):
        return metadata.version("mtpcore")
    return done.stdout.strip()


def _peer() -> str:
    try:
        import llama_cpp
    except ImportError:
        return "not installed"
    features = llama_cpp.llama_print_system_info().decode()
    used = re.findall(r"(\w+) = 1", features)
    return f"llama-cpp-python {metadata.version('llama-cpp-python')}: {' '.join(used)}"
