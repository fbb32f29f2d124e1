"""Who may ask: keys, and names under which a server on this machine alone is reached."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mtpcore.serving.refusals import Refusal, path_of, shape_of
from mtpcore.serving.replies import reply
from mtpcore.serving.settings import ServerSettings

__all__ = ["AccessCheck"]

_OPEN = ("/health", "/", "/page.js")
"""Paths that need no key: what looks after servers has none, and the page asks for one."""


class AccessCheck:
    """Lets requests pass that may.

    A page of another site can make a browser ask for a name that leads here (DNS rebinding), or
    send a request whose answer it cannot read. Neither has a host, or an origin, of this server.

    Parameters
    ----------
    app : ASGI application
    settings : ServerSettings
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http":
            path = path_of(scope)
            try:
                self._check(path, scope["method"], Headers(scope=scope))
            except Refusal as refusal:
                body = shape_of(path, refusal)
                await reply(body, refusal.status, refusal.headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, path: str, method: str, headers: Mapping[str, str]) -> None:
        hosts, origins = self._settings.hosts, self._settings.origins
        if hosts and _name_of(f"//{headers.get('host', '')}") not in hosts:
            raise Refusal(403, "the server has another name", kind="permission_error")
        origin = headers.get("origin")
        is_known = bool({"*", origin} & {*origins}) or _name_of(origin or "") in hosts
        if hosts and origin and not is_known:
            raise Refusal(403, f"pages of {origin} may not ask here", kind="permission_error")
        if not self._settings.api_keys or path in _OPEN or method == "OPTIONS":
            return
        given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        raw = given.strip().encode()
        if not any(secrets.compare_digest(raw, key.encode()) for key in self._settings.api_keys):
            raise Refusal(
                401,
                "the API key is missing or wrong",
                kind="authentication_error",
                code="invalid_api_key",
            )


def _name_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
