"""Regions of an answer by a response template: opened, filled and closed as the text comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from mtpcore.errors import MtpcoreError, spell
from mtpcore.gguf.response_template import Anchor, ResponseField, ResponseTemplate

if TYPE_CHECKING:
    import regex

__all__ = ["RegionEvent", "RegionParser"]

_MOST_EMPTY = 16
"""Marks without a character that may be found at one place."""


class RegionEvent(NamedTuple):
    """What happened to a region.

    Attributes
    ----------
    kind : {"open", "text", "close"}
    field : ResponseField, optional
        None: text that is in no region.
    text : str
        A part of what is in it; or the mark that opened or closed it.
    groups : dict of str to str
        Of a region that closed what its marks captured.
    """

    kind: Literal["open", "text", "close"]
    field: ResponseField | None
    text: str
    groups: dict[str, str]


class _Found(NamedTuple):
    """A mark, and the field that it opens; None: it closes the one that is open."""

    match: regex.Match[str]
    opened: ResponseField | None

    def order(self) -> tuple[int, int, bool, str]:
        """Return what is smallest of the mark that counts."""
        begin, end = self.match.span()
        return begin, begin - end, self.opened is None, self.opened.name if self.opened else ""


class RegionParser:
    """Finds regions in a text that comes in pieces; however it is cut, the regions are the same.

    What may still become a mark is held back. Where two marks begin at one place the longer one
    counts.

    Parameters
    ----------
    template : ResponseTemplate
    """

    def __init__(self, template: ResponseTemplate) -> None:
        self._template = template
        self._text, self._at = "", 0  # all of it, which patterns may look back at; what was read
        self._field = template.rest
        self._is_open = False
        self._groups: dict[str, str] = {}

    def feed(self, text: str) -> list[RegionEvent]:
        """Take what follows, and return what is certain of it.

        Raises
        ------
        MtpcoreError
            A pattern takes too long, or marks without characters follow each other without end.
        """
        self._text += text
        return self._read(is_end=False)

    def finish(self) -> list[RegionEvent]:
        """Close what is open: no text follows. Raises what ``feed`` raises."""
        return self._read(is_end=True)

    def _read(self, *, is_end: bool) -> list[RegionEvent]:
        events: list[RegionEvent] = []
        n_empty = 0
        while True:
            found, certain = self._find(is_end=is_end)
            if found is None:
                self._say(events, certain)
                if is_end:
                    self._close(events, "")
                return events
            match, opened = found
            n_empty = 0 if match.end() > self._at else n_empty + 1
            if n_empty > _MOST_EMPTY:
                raise MtpcoreError(
                    "marks of the response template open and close at one place without end",
                    got=spell(match.re.pattern, str),
                    fix="write patterns that take at least one character",
                )
            self._say(events, match.start())
            was_open, self._at = self._is_open, match.end()
            groups = {name: said for name, said in match.groupdict().items() if said is not None}
            if opened is None:
                self._groups |= groups
                self._close(events, match[0])
                if not was_open and not match[0]:  # it would be found again and again
                    return events
            else:
                self._close(events, "")
                self._field, self._groups, self._is_open = opened, groups, True
                events.append(RegionEvent("open", opened, match[0], {}))

    def _marks(self) -> list[tuple[Anchor, ResponseField | None]]:
        """Return what is looked for, with the field that it opens; None: it closes this one."""
        if self._field is not None and self._field.open is not None:
            return [] if self._field.close is None else [(self._field.close, None)]
        marks = [(field.open, field) for field in self._template.fields if field.open is not None]
        rest = self._template.rest
        closing = [] if rest is None or rest.close is None else [(rest.close, None)]
        return [*marks, *closing]

    def _find(self, *, is_end: bool) -> tuple[_Found | None, int]:
        """Return the first mark that is certain, and up to where the text is no mark's."""
        text, begin, certain = self._text, self._at, len(self._text)
        marks = self._marks()
        if not is_end and any(anchor.is_open(text, begin) for anchor, _ in marks):
            return None, begin
        # At the place itself first: patterns that look far ahead are slow to search for.
        here = [(anchor.find_here(text, begin), anchor, opened) for anchor, opened in marks]
        found = [_Found(match, opened) for match, _, opened in here if match is not None]
        if not is_end and any(m and not anchor.is_final(text, m) for m, anchor, _ in here):
            return None, begin
        if found and begin < certain:
            return min(found, key=_Found.order), certain
        found = []
        for anchor, opened in marks:
            if not is_end:
                certain = min(certain, anchor.find_open(text, begin))
            match = anchor.find(text, begin)
            if match is None:
                continue
            if is_end or anchor.is_final(text, match):
                found.append(_Found(match, opened))
            else:
                certain = min(certain, match.start())
        best = min(found, key=_Found.order, default=None)
        return (None if best is None or best.match.start() >= certain else best), certain

    def _say(self, events: list[RegionEvent], end: int) -> None:
        """Give the text up to a place to the region."""
        text = self._text[self._at : end]
        if not text:
            return
        self._at = end
        if self._field is not None and not self._is_open:
            self._is_open = True
            events.append(RegionEvent("open", self._field, "", {}))
        events.append(RegionEvent("text", self._field, text, {}))

    def _close(self, events: list[RegionEvent], mark: str) -> None:
        """Close the region, if one is open; what follows is in none."""
        if self._is_open:
            events.append(RegionEvent("close", self._field, mark, self._groups))
        self._field, self._is_open, self._groups = self._template.rest, False, {}
