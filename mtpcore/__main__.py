"""The process of the command ``mtpcore``, or ``python -m mtpcore``; Ctrl-C ends it at any time."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

__all__ = ["run"]

INTERRUPTED = 130


def run() -> int:
    """Run the command line as this process and return its exit code.

    Before a command has begun, and after it has ended, Ctrl-C ends the process at once. In between
    the first one is an exception, as always, and the second ends the process. Where somebody has
    Ctrl-C ignored, as shells do for what runs in the background, that stays.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        from mtpcore.cli import main

        return main()
    signal.signal(signal.SIGINT, _leave)
    sys.unraisablehook = _leave_or_report
    try:
        from mtpcore.cli import main

        signal.signal(signal.SIGINT, _interrupt)
        return main()
    except KeyboardInterrupt:
        _leave()
    finally:
        signal.signal(signal.SIGINT, _leave)
    return INTERRUPTED


def _leave(number: int = 0, frame: FrameType | None = None) -> None:
    """End the process: there is nothing to finish, or no wish to wait for it."""
    with suppress(OSError):
        os.write(2, b"mtpcore: interrupted\n")
    os._exit(INTERRUPTED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, _leave)
    raise KeyboardInterrupt


def _leave_or_report(unraisable: sys.UnraisableHookArgs) -> None:
    """Take an interrupt seriously that came where Python cannot raise it."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        _leave()
    sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    sys.exit(run())
