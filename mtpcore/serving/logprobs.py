"""Log-probabilities in the two shapes of OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtpcore.decoding import TokenLogprobs
from mtpcore.gguf import Tokenizer

__all__ = ["LegacyLogprobs", "chat_logprobs"]


def chat_logprobs(tokens: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return them as chat has them: with bytes, as a token may be a part of a character."""

    def spell(token: int, text: str, logprob: float) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": list(tokenizer.token_bytes(token))}

    return {
        "content": [
            {
                **spell(one.token, one.text, one.logprob),
                "top_logprobs": [
                    spell(token, text, logprob)
                    for (token, logprob), text in zip(one.top, one.top_texts, strict=True)
                ],
            }
            for one in tokens
        ],
        "refusal": None,
    }


class LegacyLogprobs:
    """Log-probabilities of a text as completions have them, part by part, in the text's order.

    With each token goes the place in the text where it begins. One that is not shown begins where
    what follows it does, and one that is a part of a character where that does.

    Parameters
    ----------
    tokenizer : Tokenizer or None
        None: tokens have no text.
    place : int, optional
        Characters before the text, which is one that continues a prompt; default: it is the prompt.
    """

    def __init__(self, tokenizer: Tokenizer | None, place: int | None = None) -> None:
        self._tokenizer, self._place = tokenizer, place or 0
        self._stream = tokenizer and tokenizer.stream(start=place is None)

    def spell(
        self, tokens: Sequence[TokenLogprobs], unknown: Sequence[int] = ()
    ) -> dict[str, list[Any]]:
        """Return those of the tokens that come next; before them are some that are ``unknown``."""
        nothing = [None] * len(unknown)
        return {
            "tokens": [*map(self._text_of, unknown), *(one.text for one in tokens)],
            "token_logprobs": [*nothing, *(one.logprob for one in tokens)],
            "top_logprobs": [*nothing, *map(_likeliest, tokens)],
            "text_offset": [*map(self._pass, (*unknown, *(one.token for one in tokens)))],
        }

    def _text_of(self, token: int) -> str:
        if self._tokenizer is None or token >= self._tokenizer.n_vocab:
            return ""
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")

    def _pass(self, token: int) -> int:
        """Return where a token begins, and go on after it."""
        place = self._place
        self._place += len(self._stream.push(token)) if self._stream else 0
        return place


def _likeliest(found: TokenLogprobs) -> dict[str, float]:
    """Return the likeliest tokens by their texts, the one that is there among them.

    Of several with one text, as parts of characters have it, the likeliest counts.
    """
    by_text: dict[str, float] = {}
    pairs = zip(found.top_texts, (logprob for _, logprob in found.top), strict=True)
    for text, logprob in (*pairs, (found.text, found.logprob)):
        by_text.setdefault(text, logprob)
    return by_text
