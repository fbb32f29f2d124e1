"""Files and folders that a process holds, until it ends in whatever way."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["hold_file", "hold_folder", "remove_unless_held", "rename_held"]

if sys.platform == "win32":
    import msvcrt
    import time

    _A_MINUTE = 60.0
    """Seconds; in less a file that was closed gets its last name."""

    def hold_file(file: BinaryIO) -> None:
        """Hold a file while it is open: nobody can remove it then."""

    def remove_unless_held(path: str) -> None:
        """Remove a file that nobody holds; raise OSError where somebody does, or may have."""
        if time.time() - os.stat(path).st_mtime < _A_MINUTE:
            raise BlockingIOError(path)
        os.unlink(path)

    def rename_held(file: BinaryIO, old: Path, new: Path) -> None:
        """Give an open file the name of another one; it is closed before."""
        file.close()
        os.replace(old, new)

    def _hold(folder: Path) -> int:
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            os.close(descriptor)
            raise BlockingIOError(error.errno, error.strerror) from None
        return descriptor
else:
    import fcntl

    def hold_file(file: BinaryIO) -> None:
        """Hold a file while it is open.

        Raises
        ------
        BlockingIOError
            Somebody else holds it.
        OSError
            The file system has no locks.
        """
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove_unless_held(path: str) -> None:
        """Remove a file that nobody holds; raise OSError where somebody does, or may have."""
        with open(path, "r+b") as file:
            hold_file(file)
            os.unlink(path)

    def rename_held(file: BinaryIO, old: Path, new: Path) -> None:
        """Give an open file the name of another one; it is held all the while."""
        os.replace(old, new)

    def _hold(folder: Path) -> int:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Hold a folder; on Windows a file in it, ``.lock``.

    Raises
    ------
    BlockingIOError
        Somebody else holds it.
    OSError
        There is no such folder, or its file system has no locks.
    """
    descriptor = _hold(folder)
    try:
        yield
    finally:
        os.close(descriptor)
