"""How many threads the machine grants this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mtpcore._ext._plan import MAX_THREADS
from mtpcore.system.processors import count_processors

__all__ = ["default_threads"]

_ONE_FILE: tuple[str, ...] = ("cpu.max",)
_TWO_FILES: tuple[str, ...] = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
"""Files with a CPU quota and its period, in microseconds: of cgroups version 2, and version 1."""


def default_threads() -> int:
    """Return how many processors this process may run on, at most its cgroup CPU quota."""
    return _granted(Path("/"))


def _granted(root: Path) -> int:
    """Return the same with the system's files below another folder."""
    n = count_processors()
    for text in _limits(root):
        try:
            quota, period = map(int, text.split())
        except ValueError:
            continue  # "max", or nothing there
        if quota > 0 and period > 0:
            n = min(n, max(1, quota // period))
    return min(n, MAX_THREADS)


def _limits(root: Path) -> Iterator[str]:
    """Yield the limits, as text, of this process's cgroups and of all above them."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        mount = root / "sys/fs/cgroup"
        if "cpu" in controllers.split(","):
            mounts, files = [mount / "cpu", mount / "cpu,cpuacct"], _TWO_FILES
        elif number == "0" and not controllers:
            mounts, files = [mount], _ONE_FILE
        else:
            continue
        # A container may see its path on the host, of which only the end is mounted: as the root.
        inner = PurePosixPath(path.lstrip("/"))
        groups = (inner, *inner.parents) if ".." not in inner.parts else (PurePosixPath(),)
        for folder in (at / group for at in mounts for group in groups):
            yield " ".join(_read(folder / file) for file in files)


def _read(path: Path) -> str:
    """Return a file's text, none where it cannot be read."""
    try:
        return os.fsdecode(path.read_bytes())
    except (OSError, ValueError):
        return ""
