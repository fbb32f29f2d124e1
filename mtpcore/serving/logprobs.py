"""Log-probabilities in the two shapes of OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtpcore.decoding import TokenLogprobs

__all__ = ["chat_logprobs", "legacy_logprobs"]


def chat_logprobs(tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """Return them as chat has them."""
    return {
        "content": [
            {
                **_spell(one.text, one.logprob),
                "top_logprobs": [
                    _spell(text, logprob)
                    for (_, logprob), text in zip(one.top, one.top_texts, strict=True)
                ],
            }
            for one in tokens
        ],
        "refusal": None,
    }


def _spell(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode(errors="replace"))}


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
