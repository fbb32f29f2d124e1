"""``main``: from arguments to an exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

from mtpcore.cli import (
    bench,
    chat,
    convert,
    doctor,
    eval,
    fit,
    imatrix,
    inspect,
    lend,
    list,
    lookup,
    merge,
    plugins,
    pull,
    quantize,
    rm,
    run,
    serve,
    split,
    vocabulary,
)
from mtpcore.cli.foreign import FOREIGN
from mtpcore.cli.parser import Parser
from mtpcore.cli.terminal import note
from mtpcore.errors import MtpcoreError
from mtpcore.version import version

__all__ = ["main"]

OK, FAILED, USAGE, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141
_COMMANDS = (
    run,
    chat,
    serve,
    pull,
    list,
    rm,
    inspect,
    bench,
    eval,
    convert,
    quantize,
    imatrix,
    split,
    merge,
    vocabulary,
    lookup,
    lend,
    fit,
    doctor,
    plugins,
)
_TAKE_FOREIGN = (run, chat, serve, inspect, bench, imatrix)
_MEANT = {
    **dict.fromkeys(("generate", "complete", "completion", "cli"), "mtpcore run writes a text"),
    "server": "mtpcore serve answers clients over HTTP",
    **dict.fromkeys(("download", "fetch"), "mtpcore pull OWNER/REPO fetches a model"),
    **dict.fromkeys(("ls", "models"), "mtpcore list shows the models on this machine"),
    **dict.fromkeys(("remove", "delete"), "mtpcore rm removes a model from the hub's cache"),
    **dict.fromkeys(("show", "info"), "mtpcore inspect shows what a file holds"),
}
_EXIT_CODES = f"""exit codes:
  {OK}    done
  {FAILED}    failed; standard error says why
  {USAGE}    wrong arguments
  {INTERRUPTED}  interrupted
  {UNREAD}  standard output was closed
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Results go to standard output, everything else to standard error.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; default: those of this process.
    """
    _replace_closed_streams()
    code = _execute(argv)
    _discard_unwritten(sys.stderr)
    return code


def _execute(argv: Sequence[str] | None) -> int:
    try:
        options = _parser().parse_args(argv)
        with _messages(options.verbose, options.quiet):
            for line in getattr(options, "said", ()):
                note(line)
            code: int = options.execute(options)
        sys.stdout.flush()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else USAGE
    except MtpcoreError as error:
        _complain(str(error))
        return FAILED
    except MemoryError:
        _complain("no memory left\n  fix: make -c or -b smaller, or take a smaller model")
        return FAILED
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return UNREAD
    except OSError as error:
        _discard_output()
        what = f"read or write {error.filename}" if error.filename else "write the output"
        _complain(f"cannot {what}; got {error.strerror or error}")
        return FAILED
    return code


def _replace_closed_streams() -> None:
    """Replace missing standard streams by ones that fail when they are used.

    Nothing is said where standard error is closed. The others are opened the wrong way round, so
    that reading and writing are errors as ordinary as those of a full disk.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_WRONLY))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _discard_unwritten(stream: TextIO) -> None:
    """Lead a stream nowhere that cannot be written: what it holds fails again at the exit."""
    try:
        stream.flush()
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except ValueError:  # somebody closed it
        return


def _discard_output() -> None:
    """Lead standard output nowhere: the interpreter flushes it once more when it exits."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> Parser:
    parser = Parser(
        prog="mtpcore",
        description="Speculative decoding for GGUF models: the same text in fewer passes.",
        epilog="mtpcore COMMAND --help shows a command's options and examples.\n\n" + _EXIT_CODES,
        commands=_MEANT,
    )
    parser.add_argument("--version", action="version", version=f"mtpcore {version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        sub = commands.add_parser(
            command.__name__.rpartition(".")[2],
            help=command.SUMMARY[:1].lower() + command.SUMMARY[1:],
            description=command.SUMMARY + ".",
            epilog=command.EXAMPLES,
            foreign=FOREIGN if command in _TAKE_FOREIGN else None,
        )
        parser.commands.append(sub.prog.rpartition(" ")[2])
        command.add_options(sub)
        amount = sub.add_argument_group("standard error").add_mutually_exclusive_group()
        amount.add_argument("-v", "--verbose", action="store_true", help="write more")
        amount.add_argument(
            "-q", "--quiet", action="store_true", help="write only warnings and errors"
        )
        sub.set_defaults(execute=command.execute, parser=sub)
    return parser


def _complain(text: str) -> None:
    with suppress(OSError):
        print(f"mtpcore: {text}", file=sys.stderr)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes the log to standard error, if that can be written."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore it: there is no stream left to report it on."""


@contextmanager
def _messages(verbose: bool, quiet: bool) -> Iterator[None]:
    """Show notes and the package's log on standard error.

    Text that the streams cannot spell is escaped.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    log, notes = logging.getLogger("mtpcore"), logging.getLogger("mtpcore.cli")
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("mtpcore: %(message)s"))
    before = log.level, log.propagate, notes.level
    log.addHandler(handler)
    log.setLevel(logging.INFO if verbose else logging.WARNING)
    notes.setLevel(logging.WARNING if quiet else logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]
        notes.setLevel(before[2])
