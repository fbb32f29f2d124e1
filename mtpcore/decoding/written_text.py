"""The text of a request while it grows, and where stop strings begin in it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import NamedTuple

from mtpcore.gguf import TextStream, Tokenizer

__all__ = ["StopPlace", "WrittenText"]


class StopPlace(NamedTuple):
    """Where a text ends, and the stop string that begins there."""

    place: int
    stop: str


class WrittenText:
    """What tokens are as text; a copy goes on from the same place.

    Control tokens are a part of it where they are shown. Stop strings that spell some are looked
    for in any case: in what the text would be if they were.

    Parameters
    ----------
    tokenizer : Tokenizer or None
        None: there is no text.
    stop : sequence of str
        Stop strings.
    special : bool
        Whether control tokens are shown.
    start : bool
        Whether a text starts here; False where the tokens continue a prompt.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, stop: Sequence[str], *, special: bool, start: bool
    ) -> None:
        self._shown: _Spelling | None = None
        self._spelled: _Spelling | None = None
        self._marks: tuple[tuple[int, int], ...] = ()  # where tokens begin: spelled, and shown
        if tokenizer is None:
            return
        hidden = () if special else tokenizer.special_texts
        spelling = [s for s in stop if any(text in s for text in hidden)]
        others = [s for s in stop if s not in spelling]
        self._shown = _Spelling(tokenizer.stream(special=special, start=start), others)
        if spelling:
            self._spelled = _Spelling(tokenizer.stream(special=True, start=start), spelling)

    def __copy__(self) -> WrittenText:
        other = WrittenText(None, (), special=False, start=False)
        other._shown = copy(self._shown)
        if self._spelled is not None:
            other._spelled = copy(self._spelled)
        other._marks = self._marks
        return other

    @property
    def text(self) -> str:
        """The text so far; bytes of an unfinished character are held back."""
        return self._shown.text if self._shown is not None else ""

    def push(self, token: int) -> StopPlace | None:
        """Take a token; return the first stop string that it completes."""
        if self._shown is None:
            return None
        mark = len(self._shown.text)
        cut = self._shown.push(token)
        if self._spelled is not None:
            self._marks = (*self._marks, (len(self._spelled.text), mark))
            spelled = self._spelled.push(token)
            if spelled is not None:
                shown = StopPlace(self._shown_place(spelled.place), spelled.stop)
                cut = shown if cut is None else min(cut, shown)
            self._forget_marks(len(self._spelled.text) - self._spelled.longest)
        return cut

    def flush(self) -> None:
        """End the text: bytes that are held back become U+FFFD."""
        if self._shown is not None:
            self._shown.text += self._shown.stream.flush()

    @property
    def n_settled(self) -> int:
        """How many characters no later stop string can take back."""
        if self._shown is None:
            return 0
        n = self._shown.n_settled
        if self._spelled is not None:
            n = min(n, self._shown_place(self._spelled.n_settled))
        return n

    def _shown_place(self, place: int) -> int:
        """Return where a place of the spelled text is in the text; a hidden token's is its end."""
        assert self._shown is not None
        assert self._spelled is not None
        ends = [*self._marks, (len(self._spelled.text), len(self._shown.text))]
        for (spelled, shown), (_, end) in reversed([*pairwise(ends)]):
            if spelled <= place:
                return min(shown + place - spelled, end)
        return len(self._shown.text)

    def _forget_marks(self, place: int) -> None:
        """Forget tokens that end before a place, which no stop string reaches any more."""
        n = sum(spelled <= place for spelled, _ in self._marks[1:])
        self._marks = self._marks[n:]


class _Spelling:
    """One way to spell tokens, and the stop strings that are looked for in it."""

    def __init__(self, stream: TextStream, stop: Sequence[str]) -> None:
        self.stream, self.stop, self.text = stream, stop, ""
        self.longest = max(map(len, stop), default=0)

    def __copy__(self) -> _Spelling:
        other = _Spelling(copy(self.stream), self.stop)
        other.text = self.text
        return other

    def push(self, token: int) -> StopPlace | None:
        """Take a token; return the first stop string that it completes."""
        n = len(self.text)
        self.text += self.stream.push(token)
        if not self.stop:  # as of most texts, and each token passes here
            return None
        found = (StopPlace(self.text.find(s, max(n - len(s) + 1, 0)), s) for s in self.stop)
        return min((cut for cut in found if cut.place >= 0), default=None)

    @property
    def n_settled(self) -> int:
        """How many characters come before what may turn out to be a stop string."""
        if not self.stop:
            return len(self.text)
        held = (n for s in self.stop for n in range(1, len(s)) if self.text.endswith(s[:n]))
        return len(self.text) - max(held, default=0)
