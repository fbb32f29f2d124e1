"""What was measured of prefetching, kept in the user's cache for later processes.

The file has a list of measurements for each processor. Nothing depends on it but speed, so a file
that is missing, damaged or foreign is as good as none, and one that cannot be written is left.
"""

from __future__ import annotations

import atexit
import math
import platform
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from mtpcore._ext import _fetch
from mtpcore._ext._cpu import isa
from mtpcore.boundary.atomic import replacing
from mtpcore.boundary.paths import cache_folder, read_regular
from mtpcore.errors import ModelFileError
from mtpcore.system.held_files import hold_folder

__all__ = ["Measurement", "load", "load_once", "save"]

MONTH = 30 * 24 * 3600.0
"""Seconds for which a measurement holds: machines and kernels change."""

_MOST_BYTES = 1 << 20

_Measured = tuple[int, str]


class Measurement(msgspec.Struct, frozen=True):
    """A trial's result: weight type, class of rows, GB/s of each way, and when (Unix time)."""

    type: int
    rows: str
    speeds: dict[str, float]
    time: float

    @property
    def key(self) -> _Measured:
        """What it is a measurement of."""
        return self.type, self.rows

    @property
    def is_usable(self) -> bool:
        """Whether it is of this version's ways and classes, and recent."""
        return (
            self.rows in _fetch.ROWS
            and 0 <= self.type < _fetch.TYPES
            and self.speeds.keys() == set(_fetch.WAYS)
            and all(math.isfinite(speed) and speed > 0 for speed in self.speeds.values())
            and 0 <= time.time() - self.time < MONTH
        )


_Measurements = dict[str, list[Measurement]]
_known: dict[_Measured, dict[str, float]] = {}
"""What the file and the process both have."""


@cache
def load_once() -> None:
    """Load what earlier processes measured, and save what this one has when it ends."""
    load()
    atexit.register(save)


def load() -> None:
    """Let plans begin with what was measured on this processor."""
    for one in _read().get(_processor(), []):
        if one.is_usable:
            _fetch.remember(one.type, one.rows, one.speeds)
    _note_known()


def save() -> None:
    """Add what this process has measured since `load`; where nothing is new, write nothing.

    Of two processes that save at once one writes.
    """
    new = [
        Measurement(*key, speeds, time.time())
        for key, (_, speeds) in _fetch.recall().items()
        if _known.get(key) != speeds
    ]
    if not new:
        return
    with suppress(OSError, RuntimeError):  # no home, or none that can be written to
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with hold_folder(folder):
            _write(new)
        _note_known()


def _note_known() -> None:
    _known.clear()
    _known.update({key: speeds for key, (_, speeds) in _fetch.recall().items()})


def _path() -> Path:
    return cache_folder() / "prefetch.json"


def _read() -> _Measurements:
    """Return the file's measurements by processor; none where it cannot be read."""
    try:
        return msgspec.json.decode(read_regular(_path(), _MOST_BYTES), type=_Measurements)
    except (ModelFileError, RuntimeError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def _write(new: list[Measurement]) -> None:
    path = _path()
    if path.exists() and not path.is_file():  # a pipe, say, which would wait for a reader
        return
    found, processor = _read(), _processor()
    kept = {one.key: one for one in found.get(processor, []) if one.is_usable}
    kept |= {one.key: one for one in new}
    found[processor] = list(kept.values())
    with replacing(path) as part:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))


_FIELDS = ("vendor_id", "cpu family", "model", "model name", "CPU implementer", "CPU part")


def _processor() -> str:
    """Return what tells processors apart, and the instruction set in use."""
    fields: dict[str, str] = {}
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file.read(4096).splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    known = [fields[name] for name in _FIELDS if name in fields]
    return " ".join([*(known or [platform.machine(), platform.processor()]), isa()])
