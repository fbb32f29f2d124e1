"""Log-probabilities in the two shapes of OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtpcore.decoding import TokenLogprobs
from mtpcore.gguf import Tokenizer

__all__ = ["chat_logprobs", "legacy_logprobs"]


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


def legacy_logprobs(tokens: Sequence[TokenLogprobs], begin: int = 0) -> dict[str, Any]:
    """Return them as completions have them; ``begin`` is where the text of the first one is."""
    offsets, at = [], begin
    for one in tokens:
        offsets.append(at)
        at += len(one.text)
    return {
        "tokens": [one.text for one in tokens],
        "token_logprobs": [one.logprob for one in tokens],
        "top_logprobs": [
            {text: logprob for (_, logprob), text in zip(one.top, one.top_texts, strict=True)}
            for one in tokens
        ],
        "text_offset": offsets,
    }
