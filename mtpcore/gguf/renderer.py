"""A process that renders a chat template, so that limits of the operating system can end it."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from mtpcore.acts.guards import holding
from mtpcore.errors import MtpcoreError
from mtpcore.system import children

__all__ = ["MAX_MEMORY", "MAX_SECONDS", "MAX_TEXT", "Limits", "RefusalError", "Renderer"]

MAX_SECONDS = 1.0
"""Of computing: as much for compiling the template, and for each rendering."""
SECONDS_PER_ITEM = 0.02
"""More for each message, tool and document: less than a model takes to read one.

Published templates look through the conversation again for each message: 601 messages take one of
them 1.4 seconds, 2401 take it 21.
"""
SECONDS_PER_BYTE = 1e-6
"""More for what the variables take as JSON."""
MAX_MEMORY = 64 << 20
"""Bytes beyond what the interpreter takes, and eight times the variables as JSON."""
MAX_TEXT = 4 << 20
"""Characters of a text, beyond those of the conversation."""

_PATIENCE = 30.0  # seconds by the clock for each of computing: the machine may be busy
_PROGRAM = Path(__file__).with_name("sandbox.py")
_PACKAGES = ("jinja2", "markupsafe")
_READY = b"ready"
_HEAD = struct.Struct("!QdQ")
_LENGTH = struct.Struct("!Q")


class RefusalError(MtpcoreError):
    """The template itself failed, or refused what it was given; no limit ended it."""


class Limits(NamedTuple):
    """What an answer may take: seconds of computing and bytes of memory."""

    seconds: float
    n_bytes: int


class Renderer:
    """Renders a template in a process of its own, one rendering at a time.

    The process starts when it is first needed, with no variable of this one's environment. It stays
    for the next rendering, and ends with this object, or when this process ends in whatever way.
    Where it was ended, by a limit or by anybody, the next rendering starts another. A fork of this
    process starts its own.

    Parameters
    ----------
    source : str
        The Jinja text.
    where : str
        For errors.

    Attributes
    ----------
    max_seconds, max_memory : float and int, optional
        What the caller allows for compiling, and for each rendering, in place of our limits.
    """

    def __init__(self, source: str, where: str) -> None:
        self._source, self._where = source, where
        self.max_seconds: float | None = None
        self.max_memory: int | None = None
        self._owner, self._lock = os.getpid(), Lock()
        self._running: list[_Process] = []  # one or none
        weakref.finalize(self, _end, self._running)

    def check(self) -> None:
        """Compile the template.

        Raises
        ------
        MtpcoreError
            It is malformed, exceeds a limit, or there can be no process.
        """
        self._answer(None, 0)

    def render(self, variables: Mapping[str, Any], now: datetime) -> str:
        """Render the template.

        Parameters
        ----------
        variables : mapping
            What JSON can say.
        now : datetime
            What ``strftime_now`` tells.

        Raises
        ------
        RefusalError
            It fails.
        MtpcoreError
            It exceeds a limit, there can be no process, or JSON cannot say the variables.
        """
        try:
            message = json.dumps({"now": now.isoformat(), "variables": variables})
        except (TypeError, ValueError, RecursionError) as error:
            raise self._error(MtpcoreError, f"{type(error).__name__}: {error}") from error
        n_items = sum(len(value) for value in variables.values() if isinstance(value, list | tuple))
        return self._answer(message.encode(), n_items)

    def _answer(self, message: bytes | None, n_items: int) -> str:
        if self._owner != os.getpid():  # a fork: the process belongs to the one that it came of
            self._owner, self._lock = os.getpid(), Lock()
            _end(self._running)
        kind, text = holding(self._lock, self._ask_or_end, message, n_items)
        if kind != b"text":
            raise self._error(RefusalError, text)
        return text

    def _ask_or_end(self, message: bytes | None, n_items: int) -> tuple[bytes, str]:
        try:
            return self._ask(message, n_items)
        except _NoAnswer as error:
            _end(self._running)
            raise self._error(MtpcoreError, str(error), error.fix) from None
        except BaseException:  # an interrupt, too: the answer must not be taken for the next
            _end(self._running)
            raise

    def _ask(self, message: bytes | None, n_items: int) -> tuple[bytes, str]:
        kind, text = b"text", ""
        if not self._running or self._running[0].has_ended():
            _end(self._running)
            self._running.append(self._start())
            source = self._source.encode("utf-8", "surrogatepass")
            kind, text = self._running[0].ask(source, self._limits())
            if kind != b"text":  # it still waits for a template, and would take the next message
                _end(self._running)
        if kind == b"text" and message is not None:
            kind, text = self._running[0].ask(message, self._limits(len(message), n_items))
        return kind, text

    def _limits(self, n_bytes: int = 0, n_items: int = 0) -> Limits:
        seconds, memory = self.max_seconds, self.max_memory
        if seconds is None:
            seconds = MAX_SECONDS + SECONDS_PER_ITEM * n_items + SECONDS_PER_BYTE * n_bytes
        return Limits(seconds, MAX_MEMORY if memory is None else memory)

    def _start(self) -> _Process:
        try:
            return _start()
        except (OSError, ValueError) as error:
            raise MtpcoreError(
                "no process can be started to render the template",
                where=self._where,
                got=f"{type(error).__name__}: {error}",
                fix="multiprocessing.set_executable(PATH) names a Python that has Jinja",
            ) from error

    def _error(self, kind: type[MtpcoreError], reason: str, fix: str = "") -> MtpcoreError:
        shown = "".join(c if c.isprintable() else "\ufffd" for c in reason)
        return kind("the template failed", where=self._where, got=shown, fix=fix)


class _NoAnswer(Exception):
    """The reason why no answer came, and what the caller can do about it."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.fix = fix


class _Process:
    """A run of ``sandbox.py``, and the socket to it."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process, self._connection = process, connection
        self._owner = os.getpid()

    def has_ended(self) -> bool:
        """Say whether the process was ended."""
        return children.status_of(self._process) is not None

    def end(self) -> None:
        """End the process; a fork of its parent only drops its connection."""
        self._connection.close()
        if self._owner != os.getpid():
            self._process.returncode = 0  # or Popen would look after it
        elif children.status_of(self._process) is None:
            children.end(self._process)
            children.status_of(self._process, waits=True)

    def wait_until_ready(self) -> None:
        """Wait until it is ready; raise OSError where it fails to start."""
        if self._receive(len(_READY), time.monotonic() + _PATIENCE) != _READY:
            raise OSError("it runs another program")

    def ask(self, message: bytes, limits: Limits) -> tuple[bytes, str]:
        """Send a message; return the kind of the answer, which may take so much, and its text.

        Raises
        ------
        _NoAnswer
            A limit ended it.
        """
        patience = _PATIENCE * max(limits.seconds, MAX_SECONDS)
        deadline = time.monotonic() + patience
        try:
            self._connection.settimeout(patience)
            head = _HEAD.pack(len(message), *limits)
            children.send(self._connection, head + message)
            (n_bytes,) = _LENGTH.unpack(self._receive(_LENGTH.size, deadline))
            if n_bytes > 4 * (MAX_TEXT + len(message)) + len(b"text"):
                raise _NoAnswer("an answer longer than any text may be")
            answer = self._receive(n_bytes, deadline)
        except TimeoutError:
            raise _NoAnswer(f"no end in {round(patience, 1):g} seconds") from None
        except OSError:
            raise self._reason(limits) from None
        return answer[:4], answer[4:].decode("utf-8", "surrogatepass")

    def _receive(self, n_bytes: int, deadline: float) -> bytes:
        """Return this many bytes; raise OSError where they do not come."""
        data = bytearray()
        while len(data) < n_bytes:
            self._connection.settimeout(max(deadline - time.monotonic(), 1e-3))
            part = self._connection.recv(min(n_bytes - len(data), 1 << 20))
            if not part:
                raise ConnectionResetError
            data += part
        return bytes(data)

    def _reason(self, limits: Limits) -> _NoAnswer:
        """Say what ended it."""
        deadline = time.monotonic() + 1.0
        while (status := children.status_of(self._process)) is None:
            if time.monotonic() > deadline:
                return _NoAnswer("no answer")
            time.sleep(1e-3)
        if status in children.OUT_OF_TIME:
            return _NoAnswer(
                f"more than {limits.seconds:.3g} seconds of computing",
                "if you trust the template: chat_template.max_seconds = (a larger number)",
            )
        if status != children.OUT_OF_MEMORY:
            return _NoAnswer(f"its process ended with status {status}")
        reason = f"more than {limits.n_bytes >> 20} MB of memory"
        if (hard := children.memory_bound()) is not None:
            reason += f", or than fits into the {hard >> 20} MB of a process (ulimit -v)"
        return _NoAnswer(
            reason, "if you trust the template: chat_template.max_memory = (more bytes)"
        )


def _end(running: list[_Process]) -> None:
    while running:
        running.pop().end()


def _start() -> _Process:
    """Start a process that is ready for a template.

    Raises
    ------
    OSError
        There is no Python to run, or none that has Jinja.
    """
    from multiprocessing import spawn  # a host with a Python inside tells it which one to run

    python = os.fsdecode(spawn.get_executable() or "")
    if not python or (getattr(sys, "frozen", False) and python == sys.executable):
        raise OSError("this program is no Python interpreter")
    specs = [find_spec(name) for name in _PACKAGES]
    places = [place for spec in specs if spec for place in spec.submodule_search_locations or ()]
    folders = dict.fromkeys(str(Path(place).parent) for place in places)
    command = [python, "-s", "-P", "-S", str(_PROGRAM), str(MAX_TEXT), *folders]
    ours, theirs = children.connect()
    try:
        with theirs:
            process = children.start(command, theirs)
    except BaseException:
        ours.close()
        raise
    started = _Process(process, ours)
    try:
        started.wait_until_ready()
    except BaseException:
        started.end()
        raise
    return started
