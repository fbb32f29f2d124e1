"""Turns as people enter them: edited lines, pasted texts, several lines as one, and a history."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from mtpcore.boundary.paths import state_folder
from mtpcore.errors import MtpcoreError

__all__ = ["Turns"]

_QUOTES = '"""'
_LONGEST = 1000
"""Turns of a history that are read; twice as many may be in the file."""


class Turns:
    r"""Reads turns from standard input.

    A line is a turn; lines between ``\"\"\"`` and ``\"\"\"`` are one, and so are lines that end
    with a backslash and the line after them. At a terminal lines can be edited, a text of several
    lines that is pasted is one turn, and turns of earlier chats come back.

    Parameters
    ----------
    keeps : bool
        Whether turns are kept in a file, ``mtpcore/chat-history.jsonl`` in the user's state folder.
    """

    def __init__(self, *, keeps: bool = True) -> None:
        self.is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._readline: Any = None
        self._file: Path | None = None
        if not self.is_terminal:
            return
        with suppress(ImportError):
            readline: Any = import_module("readline")  # Windows has none
            # Since 3.10 Python switches off what tells a pasted line from one that was entered.
            if os.environ.get("TERM", "dumb") != "dumb":
                readline.parse_and_bind("set enable-bracketed-paste on")
            readline.set_auto_history(False)
            self._readline = readline
            if keeps:
                with suppress(OSError, RuntimeError):  # no home, or none that can be written
                    self._file = _open_history(readline)

    def read(self) -> str:
        """Return the next turn.

        Raises
        ------
        EOFError
            The input ends.
        MtpcoreError
            It cannot be read.
        """
        line = self._read_line("> ")
        lines = []
        if line.lstrip().startswith(_QUOTES):
            line = line.lstrip()[len(_QUOTES) :]
            while not line.rstrip().endswith(_QUOTES):
                lines.append(line)
                line = self._read_line(". ")
            line = line.rstrip()[: -len(_QUOTES)]
        else:
            while line.endswith("\\"):
                lines.append(line[:-1])
                line = self._read_line(". ")
        turn = "\n".join([*lines, line]).strip()
        if turn and self._readline is not None:
            self._remember(turn)
        return turn

    def _read_line(self, prompt: str) -> str:
        try:
            return input(prompt if self.is_terminal else "")
        except (OSError, UnicodeDecodeError) as error:
            got = getattr(error, "strerror", None) or error
            raise MtpcoreError("cannot read a turn", where="standard input", got=got) from None

    def _remember(self, turn: str) -> None:
        self._readline.add_history(turn)
        if self._file is not None:
            with suppress(OSError), self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(turn) + "\n")


def _open_history(readline: Any) -> Path:
    """Read the history of earlier chats, and return its file, which only this user can read."""
    file = state_folder() / "chat-history.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
    lines = file.read_bytes().splitlines()
    if len(lines) > 2 * _LONGEST:
        file.write_bytes(b"".join(line + b"\n" for line in lines[-_LONGEST:]))
    for line in lines[-_LONGEST:]:
        with suppress(ValueError):  # a line that was cut off
            turn = json.loads(line)
            if isinstance(turn, str):
                readline.add_history(turn)
    return file
