"""Regular expressions of model files: searched in parts of a text, and never for long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mtpcore.errors import MtpcoreError, spell

if TYPE_CHECKING:
    import regex

__all__ = ["compile_pattern", "find_all", "find_first", "find_here"]

_SECONDS = 1.0
"""Of one search. Patterns come with files, and some take exponential time."""


def compile_pattern(source: str) -> regex.Pattern[str]:
    """Compile a pattern in which a dot is any character; ValueError: it is none."""
    import regex

    try:
        return regex.compile(source, regex.DOTALL)
    except regex.error as error:
        raise ValueError(f"no regular expression: {source[:80]!r}: {error}") from error


def find_first(
    pattern: regex.Pattern[str], text: str, begin: int = 0, *, partial: bool = False
) -> regex.Match[str] | None:
    """Find the first match; with ``partial`` also what may become one as the text goes on."""
    try:
        return pattern.search(text, begin, partial=partial, timeout=_SECONDS)
    except TimeoutError as error:
        raise _too_slow(pattern) from error


def find_here(
    pattern: regex.Pattern[str], text: str, begin: int, *, partial: bool = False
) -> regex.Match[str] | None:
    """Find a match that begins at a place; with ``partial`` also what may become one."""
    try:
        return pattern.match(text, begin, partial=partial, timeout=_SECONDS)
    except TimeoutError as error:
        raise _too_slow(pattern) from error


def find_all(pattern: regex.Pattern[str], text: str) -> Iterator[regex.Match[str]]:
    """Yield all matches."""
    try:
        yield from pattern.finditer(text, timeout=_SECONDS)
    except TimeoutError as error:
        raise _too_slow(pattern) from error


def _too_slow(pattern: regex.Pattern[str]) -> MtpcoreError:
    return MtpcoreError(
        "a pattern of the response template takes too long",
        got=spell(pattern.pattern, str),
        wanted=f"an answer within {_SECONDS:g} s",
        fix="write it without repetitions inside repetitions",
    )
