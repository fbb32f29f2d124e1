"""What is drawn for a request: names, and a seed; the same for one that is answered twice."""

from __future__ import annotations

import hashlib
import secrets
import time
from contextvars import ContextVar
from typing import NamedTuple

__all__ = ["RequestDraws", "draw_name", "draw_seed", "fix_draws", "request_time"]


class RequestDraws(NamedTuple):
    """What all draws of a request follow from.

    Attributes
    ----------
    key : bytes
    time : int
        When the request came, in seconds since 1970.
    """

    key: bytes
    time: int

    @classmethod
    def make(cls) -> RequestDraws:
        """Draw anew."""
        return cls(secrets.token_bytes(16), int(time.time()))

    def digest(self, *what: str | int) -> str:
        """Return 64 hexadecimal digits."""
        return hashlib.sha256(self.key + repr(what).encode()).hexdigest()


_draws: ContextVar[RequestDraws | None] = ContextVar("_draws", default=None)


def fix_draws(draws: RequestDraws) -> None:
    """Let what is drawn in this task, and in those that it begins, follow from this."""
    _draws.set(draws)


def draw_name(prefix: str, *place: int) -> str:
    """Return a name that no other thing has; ``place`` says which thing of the request it is of."""
    draws = _draws.get()
    end = secrets.token_hex(12) if draws is None else draws.digest(prefix, *place)[:24]
    return prefix + end


def draw_seed() -> int | None:
    """Return the seed of texts whose request gives none; None: each text draws its own."""
    draws = _draws.get()
    return None if draws is None else int(draws.digest("seed")[:8], 16)


def request_time() -> int:
    """Return when the request came, in seconds since 1970."""
    draws = _draws.get()
    return int(time.time()) if draws is None else draws.time
