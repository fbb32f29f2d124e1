"""Output at the terminal: colours, streamed text, notes, numbers."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Literal, TextIO

from mtpcore.decoding import Request
from mtpcore.gguf import Tokenizer

__all__ = [
    "ColourMode",
    "LiveText",
    "harmless",
    "note",
    "note_left_out",
    "paint",
    "says_notes",
    "spell_bytes",
    "uses_colour",
]

ColourMode = Literal["auto", "always", "never"]
_NOTES = logging.getLogger("mtpcore.cli")
_NOTES.setLevel(logging.INFO)
_CODES = {"bold": "1", "dim": "2", "green": "32"}
_HARMLESS = "\n\t"
_CONTROLS = {c: "\ufffd" for c in (*range(32), *range(127, 160)) if chr(c) not in _HARMLESS}


def uses_colour(mode: ColourMode, stream: TextIO) -> bool:
    """Say whether to colour; ``auto`` asks NO_COLOR, TERM and whether it is a terminal."""
    if mode != "auto":
        return mode == "always"
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and stream.isatty()


def paint(text: str, *styles: str) -> str:
    """Return text in a style, for terminals."""
    codes = ";".join(_CODES[style] for style in styles)
    return f"\x1b[{codes}m{text}\x1b[0m" if text else ""


def harmless(text: str) -> str:
    """Return text without control characters: what comes from files must not steer a terminal."""
    return text.translate(_CONTROLS)


def note(text: str) -> None:
    """Say something on standard error; ``--quiet`` keeps it back, as it does progress."""
    _NOTES.info(text)


def says_notes() -> bool:
    """Say whether notes are shown."""
    return _NOTES.isEnabledFor(logging.INFO)


def note_left_out(left_out: Mapping[str, str], every_name: bool) -> None:
    """Say what a file does without: how many tensors for each reason, or every name."""
    for reason in dict.fromkeys(left_out.values()):
        names = [name for name, why in left_out.items() if why == reason]
        shown = names if every_name or len(names) == 1 else [f"{len(names)} tensors"]
        for name in shown:
            note(f"left out: {name} ({reason})")


def spell_bytes(n: float) -> str:
    """Return a size as people read it: ``3.4 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    raise AssertionError("unreachable")


class LiveText:
    """Writes a request's text as it grows, accepted drafts in colour.

    Text that a stop string could still take back is held. On a terminal control characters are
    replaced. Without a tokenizer token ids are written.
    """

    def __init__(
        self, request: Request, tokenizer: Tokenizer | None, out: TextIO, colour: bool
    ) -> None:
        self._request, self._out, self._colour = request, out, colour
        self._decoder = None
        if tokenizer is not None:
            self._decoder = tokenizer.stream(special=request.special, start=bool(request.source))
        self._n_tokens = self._written = 0
        self._pieces: list[tuple[str, bool]] = []
        self._at_line_start = True

    def update(self) -> None:
        """Write what is new and certain."""
        request = self._request
        for token, drafted in zip(
            request.tokens[self._n_tokens :], request.drafted[self._n_tokens :], strict=True
        ):
            piece = self._decoder.push(token) if self._decoder else f"{token} "
            self._pieces.append((piece, drafted))
        self._n_tokens = len(request.tokens)
        if request.done and self._decoder:
            self._pieces.append((self._decoder.flush(), False))
        room = len(request.settled_text()) - self._written if self._decoder else None
        while self._pieces and (room is None or room > 0):
            piece, drafted = self._pieces.pop(0)
            shown = piece[:room]
            if shown != piece:
                self._pieces.insert(0, (piece[len(shown) :], drafted))
            self._written += len(shown)
            if room is not None:
                room -= len(shown)
            self._write(shown, drafted)
        self._out.flush()

    def end(self) -> None:
        """End the last line."""
        if not self._at_line_start:
            self._out.write("\n")
            self._out.flush()

    def _write(self, text: str, drafted: bool) -> None:
        if not text:
            return
        self._at_line_start = text.endswith("\n")
        if self._out.isatty():
            text = harmless(text)
        self._out.write(paint(text, "green") if drafted and self._colour else text)
