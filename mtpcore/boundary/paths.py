"""Paths from callers: which are accepted, and how regular files are read."""

from __future__ import annotations

import os
import stat
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from mtpcore.errors import ModelFileError, spell
from mtpcore.system.opening import READING, READING_AT_ONCE

__all__ = [
    "cache_folder",
    "choose_fix",
    "open_regular",
    "open_stream",
    "read_regular",
    "state_folder",
    "take_path",
]

_POINTER = b"version https://git-lfs"


def cache_folder() -> Path:
    """Return the folder for what can be made again, as XDG has it; it may not be there.

    Raises
    ------
    RuntimeError
        This user has no home.
    """
    return _folder("XDG_CACHE_HOME", ".cache")


def state_folder() -> Path:
    """Return the folder for what is kept from run to run, as XDG has it; it may not be there.

    Raises
    ------
    RuntimeError
        This user has no home.
    """
    return _folder("XDG_STATE_HOME", ".local/state")


def _folder(variable: str, otherwise: str) -> Path:
    """Return a folder of ours for this user.

    A relative path in the variable counts as none: it would be another folder wherever one works.
    """
    root = Path(os.environ.get(variable, ""))
    if not root.is_absolute():
        root = Path.home() / otherwise
    return root / "mtpcore"


def choose_fix(beginning: bytes, otherwise: str) -> str:
    """Return what to do about a file that begins so and is not of the kind that it should be.

    Without Git LFS a clone has a pointer of some lines in the place of each large file.
    """
    if beginning.startswith(_POINTER):
        return "install Git LFS, and fetch the file itself: git lfs pull"
    return otherwise


def take_path(path: str | PathLike[str]) -> Path:
    """Return a path that the system can be asked for.

    Raises
    ------
    ModelFileError
        It is no text, or one that no file can have as its name.
    """
    try:
        taken = Path(path)
        if b"\0" in os.fsencode(taken):
            raise ValueError("a zero byte")
    except MemoryError:
        raise
    except Exception as error:  # not a path, and whatever a caller's object raises
        raise ModelFileError(
            "not a path", wanted="a text without zero bytes, or a path", got=spell(path)
        ) from error
    return taken


def open_regular(path: Path, *, fix: str = "give a file that exists and can be read") -> BinaryIO:
    """Open a regular file for reading; links are followed.

    A pipe would block, and a device may have no end.

    Raises
    ------
    ModelFileError
        It cannot be opened, or is something else.
    """
    return _open(path, (stat.S_IFREG,), "a regular file", fix)


def open_stream(path: Path, *, fix: str = "give a file that exists and can be read") -> BinaryIO:
    """Open a regular file, a pipe or a terminal, to be read once.

    Raises
    ------
    ModelFileError
        It cannot be opened, or is something else, as a device that may have no end.
    """
    return _open(path, (stat.S_IFREG, stat.S_IFIFO), "a regular file or a pipe", fix)


def read_regular(path: Path, limit: int, *, fix: str = "give the right file") -> bytes:
    """Return the bytes of a regular file of at most ``limit`` bytes.

    Raises
    ------
    ModelFileError
        It cannot be read, is something else, or is longer.
    """
    with open_regular(path, fix=fix) as file:
        try:
            data = file.read(limit + 1)
        except OSError as error:
            raise _unreadable(path, error, fix) from error
    if len(data) > limit:
        raise ModelFileError(
            "the file is too long", where=str(path), wanted=f"at most {limit} bytes", fix=fix
        )
    return data


def _open(path: Path, kinds: tuple[int, ...], wanted: str, fix: str) -> BinaryIO:
    pipes = stat.S_IFIFO in kinds
    try:
        # Opened without waiting for a pipe's writer, unless a pipe is what is wanted.
        handle = os.open(path, READING if pipes else READING_AT_ONCE)
        kind = stat.S_IFMT(os.fstat(handle).st_mode)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error, fix) from error
    if kind in kinds or (pipes and os.isatty(handle)):
        return os.fdopen(handle, "rb")
    os.close(handle)
    what = "a folder, not a file" if kind == stat.S_IFDIR else "not a regular file"
    raise ModelFileError(what, where=str(path), wanted=wanted, fix=fix)


def _unreadable(path: Path, error: Exception, fix: str) -> ModelFileError:
    reason = getattr(error, "strerror", None) or error
    return ModelFileError("cannot read the file", where=str(path), got=reason, fix=fix)
