"""Answers in one piece, and what the answers of several APIs have in common."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from mtpcore.lm import Completion

__all__ = ["DONE", "reply", "spell_finish"]

DONE = b"data: [DONE]\n\n"
"""The last event of a stream of OpenAI's API."""

_FINISHES = {"end": "stop", "stop": "stop", "length": "length", "no_token": "length"}
"""Where no token was left the text is cut: ``stop`` would say that its form is complete."""


def reply(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return an answer as JSON."""
    body = msgspec.json.encode(content)
    return Response(body, status, headers=headers, media_type="application/json")


def spell_finish(completion: Completion) -> str:
    """Return why a text ended, in the words of OpenAI's API."""
    return _FINISHES[completion.finish_reason]
