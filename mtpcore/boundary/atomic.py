"""Writing a file as a whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path

__all__ = ["replacing"]


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[Path]:
    """Give the name of a file to write, which takes the place of another when it is whole.

    What the block writes as ``<path>.part`` is on the disk before it is called ``path``, so that
    readers of ``path`` find the old file or the new one, whatever happens: an exception, which
    removes the part, a full disk, or a loss of power. A device or a pipe cannot be replaced: there
    the block gets its own name.

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
    part = whole.with_name(whole.name + ".part")
    with suppress(FileNotFoundError):  # so that no link or pipe of this name is written through
        part.unlink()
    try:
        yield part
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            shutil.copymode(whole, part)
        os.replace(part, whole)
        with suppress(OSError):  # some file systems cannot do this for folders
            _settle_names(whole.parent)
    finally:
        with suppress(OSError):
            part.unlink()


def _settle_names(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
