"""Writing a file as a whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from mtpcore.system.held_files import hold_file, remove_unless_held, rename_held

__all__ = ["replacing"]


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[Path]:
    """Give the name of an empty file to fill, which takes the place of another when it is whole.

    What the block writes into it (``<path>.mtpcore-<random>.part``) is on the disk before it is
    called ``path``, so that readers of ``path`` find the old file or the new one, whatever happens:
    an exception, which removes the part, a full disk, or a loss of power. Of several processes that
    write one path each has a part of its own, and the last one to end gives the file. The part of a
    process that was killed is removed by the next one that writes this path. A device or a pipe
    cannot be replaced: there the block gets its own name.

    Parameters
    ----------
    path : path
        A link stays one: what it leads to is replaced.

    Raises
    ------
    OSError
        The part cannot be written, or ``path`` is a folder.
    """
    whole = Path(os.path.realpath(path))
    if whole.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if whole.exists() and not whole.is_file():
        yield whole
        return
    _remove_abandoned(whole)
    part, file = _create_part(whole)
    with file:
        try:
            yield part
            os.fsync(file.fileno())
            with suppress(FileNotFoundError):
                shutil.copymode(whole, part)
            rename_held(file, part, whole)
            with suppress(OSError):  # some file systems cannot do this for folders
                _settle_names(whole.parent)
        finally:
            with suppress(OSError):
                part.unlink()


def _prefix(whole: Path) -> str:
    """Return how the names of a file's parts begin, short enough for every file system."""
    return f"{whole.name[:50]}.mtpcore-"


def _create_part(whole: Path) -> tuple[Path, BinaryIO]:
    """Create a part; it is held as long as the file is open, and no longer than the process."""
    while True:
        part = whole.with_name(f"{_prefix(whole)}{secrets.token_hex(8)}.part")
        file = open(part, "xb")  # noqa: SIM115  # the caller closes it
        try:
            hold_file(file)
        except BlockingIOError:  # a process that looks for abandoned parts came between
            file.close()
            continue
        except OSError:  # a file system without locks, where abandoned parts stay
            return part, file
        if os.fstat(file.fileno()).st_nlink:  # no such process has been here and gone
            return part, file
        file.close()


def _remove_abandoned(whole: Path) -> None:
    """Remove the parts of processes that were killed."""
    with suppress(OSError), os.scandir(whole.parent) as entries:
        for entry in entries:
            is_part = entry.name.startswith(_prefix(whole)) and entry.name.endswith(".part")
            if is_part and entry.is_file(follow_symlinks=False):
                with suppress(OSError):
                    remove_unless_held(entry.path)


def _settle_names(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
