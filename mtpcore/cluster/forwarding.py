"""A request on its way to a replica."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from starlette.types import Scope

from mtpcore.cluster.prefix_keys import prefix_keys
from mtpcore.serving.draws import RequestDraws
from mtpcore.serving.refusals import path_of

__all__ = ["ForwardedRequest"]

_SENT = (
    *("type", "http_version", "method", "scheme", "path", "raw_path", "root_path"),
    *("query_string", "headers", "client", "server"),
)
"""What of an ASGI scope is the request's: the rest belongs to the process that received it."""


@dataclass(frozen=True)
class ForwardedRequest:
    """A request as a replica gets it.

    Attributes
    ----------
    scope : dict
        ASGI's, as far as it can be sent.
    body : bytes
        All of it.
    keys : tuple of bytes
        Of the beginnings of its conversation, which the router reads.
    draws : RequestDraws
        So that two replicas draw the same for it.
    """

    scope: dict[str, Any]
    body: bytes = b""
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    draws: RequestDraws = field(default_factory=RequestDraws.make, repr=False)

    @classmethod
    def of(cls, scope: Scope, body: bytes) -> ForwardedRequest:
        """Make one of a request that was received."""
        sent = {name: scope[name] for name in _SENT if name in scope}
        return cls(sent, body, prefix_keys(path_of(scope), body))

    @classmethod
    def to(cls, path: str) -> ForwardedRequest:
        """Make a request for a path of a replica itself."""
        raw = path.encode()
        return cls(
            {
                "type": "http",
                "http_version": "1.1",
                "method": "GET",
                "scheme": "http",
                "path": path,
                "raw_path": raw,
                "root_path": "",
                "query_string": b"",
                "headers": [],
                "client": None,
                "server": None,
            }
        )
