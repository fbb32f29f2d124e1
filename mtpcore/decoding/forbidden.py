"""Tokens that a text may not go on with: its end, while it is too short, and banned strings."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mtpcore.gguf import Tokenizer

__all__ = ["ForbiddenTokens"]

I32 = NDArray[np.int32]


class ForbiddenTokens:
    """Says which tokens a text may not go on with, from its tokens alone.

    A token that would complete a banned string is one of them, however the string is divided into
    tokens. So no text has one; nothing of it is taken back.

    Parameters
    ----------
    ends : collection of int
        Tokens that end the text.
    min_tokens : int
        Until the text has so many tokens none of ``ends`` may come.
    banned : sequence of str
        Strings that the text never has.
    tokenizer : Tokenizer or None
        It is there where strings are.
    special : bool
        Whether control tokens are a part of the text.
    """

    def __init__(
        self,
        ends: Collection[int],
        min_tokens: int,
        banned: Sequence[str],
        tokenizer: Tokenizer | None,
        *,
        special: bool,
    ) -> None:
        self._ends, self._min_tokens = np.array(sorted(ends), np.int32), min_tokens
        self._banned = _find_completions(tuple(banned), tokenizer, special) if banned else {}
        self._pieces = _pieces(tokenizer, special) if banned and tokenizer is not None else ()
        self._longest = max(map(len, self._banned), default=0)

    def is_over(self, n_tokens: int) -> bool:
        """Say whether nothing is forbidden any more, of a text with so many tokens."""
        return n_tokens >= self._min_tokens and not self._banned

    def after(self, text: Sequence[int]) -> I32:
        """Return the tokens that may not follow a text, each perhaps several times."""
        found = [self._ends] if len(text) < self._min_tokens else []
        if self._banned:
            tail, at = b"", len(text)
            while at > 0 and len(tail) < self._longest:
                at -= 1
                token = text[at]
                tail = (self._pieces[token] if token < len(self._pieces) else b"") + tail
            found += [ids for begin, ids in self._banned.items() if tail.endswith(begin)]
        return np.concatenate(found) if found else np.zeros(0, np.int32)


@lru_cache(4)
def _pieces(tokenizer: Tokenizer, special: bool) -> tuple[bytes, ...]:
    """Return what each token writes."""
    return tuple(tokenizer.shown_bytes(token, special) for token in range(tokenizer.n_vocab))


@lru_cache(4)
def _sorted_pieces(tokenizer: Tokenizer, special: bool) -> tuple[list[bytes], I32]:
    pieces = _pieces(tokenizer, special)
    order = sorted(range(len(pieces)), key=pieces.__getitem__)
    return [pieces[token] for token in order], np.array(order, np.int32)


def _find_completions(
    banned: tuple[str, ...], tokenizer: Tokenizer | None, special: bool
) -> dict[bytes, I32]:
    """Return by the end of a text the tokens that would complete a banned string after it.

    After any text (its end being nothing): the tokens that have one in them. After the beginning of
    one: those that begin with its rest.
    """
    assert tokenizer is not None
    pieces, (ordered, order) = _pieces(tokenizer, special), _sorted_pieces(tokenizer, special)
    found: dict[bytes, list[I32]] = {}
    for string in map(str.encode, banned):
        having = [token for token, piece in enumerate(pieces) if string in piece]
        found.setdefault(b"", []).append(np.array(having, np.int32))
        for n in range(1, len(string)):
            rest = string[n:]
            first = bisect_left(ordered, rest)
            last = bisect_left(ordered, True, first, key=lambda piece: not piece.startswith(rest))
            found.setdefault(string[:n], []).append(order[first:last])
    return {end: np.concatenate(ids) for end, ids in found.items()}
