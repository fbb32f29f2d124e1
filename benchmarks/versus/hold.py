"""Keeping other work off the machine while something is timed."""

from __future__ import annotations

import shlex
import subprocess
from contextlib import suppress
from time import perf_counter

__all__ = ["Hold"]


class Hold:
    """A context manager that runs a command around what is timed.

    The command keeps other work off the machine. It starts to do so when it copies a line from its
    input to its output, and stops when its input ends, as a ``cat`` would that waits until the
    machine is free. It keeps running over several uses until ``seconds`` have passed.
    """

    def __init__(self, command: str = "", seconds: float = 15.0) -> None:
        self.command, self.seconds = shlex.split(command), seconds
        self._child: subprocess.Popen[str] | None = None
        self._begin = 0.0

    def __enter__(self) -> Hold:
        if self.command and self._child is None:
            pipe = subprocess.PIPE
            self._child = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, text=True)
            assert self._child.stdin is not None
            assert self._child.stdout is not None
            with suppress(BrokenPipeError):
                self._child.stdin.write("begin\n")
                self._child.stdin.flush()
            if not self._child.stdout.readline():
                self.release()
                raise RuntimeError(f"ended at once: {shlex.join(self.command)}")
            self._begin = perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] or perf_counter() - self._begin > self.seconds:
            self.release()

    def release(self) -> None:
        """Let others go on."""
        if self._child is not None:
            with suppress(BrokenPipeError):
                self._child.communicate()
            self._child = None
