"""What a request is answered with that cannot be served, in the shape of each API."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from mtpcore.errors import BusyError, MtpcoreError

__all__ = ["Refusal", "as_anthropic", "as_ollama", "as_openai", "path_of", "refusal_of", "shape_of"]

log = logging.getLogger("mtpcore")

_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class Refusal(Exception):
    """A request that is not served.

    Parameters
    ----------
    status : int
        Of HTTP. Clients ask again after 408, 409, 429 and all from 500 on.
    message : str
    kind : str
        The ``type`` of OpenAI's API.
    param : str, optional
        The field of the request that is concerned.
    code : str, optional
        A word for programs.
    retry_after : int, optional
        Seconds after which asking again may help.
    **more
        Further facts of the error.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        **more: Any,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind
        self.param, self.code, self.retry_after, self.more = param, code, retry_after, more

    @property
    def headers(self) -> dict[str, str]:
        """Headers that go with it."""
        if self.retry_after is None:
            return {} if self.status < 500 else {"x-should-retry": "false"}
        return {"retry-after": str(self.retry_after)}


def refusal_of(error: BaseException, *, is_asked: bool) -> Refusal:
    """Return what an error means for whoever sent the request.

    Parameters
    ----------
    error : BaseException
    is_asked : bool
        Whether it came up while the request was read, so that the request is at fault.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, TimeoutError):
        return Refusal(504, "the request took longer than this server allows", kind="timeout_error")
    if isinstance(error, MemoryError) and not is_asked:
        log.error("a request failed: %s", error)
        return Refusal(503, str(error), kind="overloaded_error", retry_after=5)
    if isinstance(error, BusyError):
        return Refusal(503, str(error), kind="overloaded_error", retry_after=1)
    if isinstance(error, MtpcoreError):
        if is_asked:
            return Refusal(400, str(error))
        log.error("a request failed: %s", error)
        return Refusal(500, str(error), kind="server_error")
    log.error("a request failed", exc_info=error)
    return Refusal(500, f"{type(error).__name__}: {error}", kind="server_error")


def as_openai(refusal: Refusal) -> dict[str, Any]:
    """Return the body of an error as OpenAI's API has it."""
    return {
        "error": {
            "message": refusal.message,
            "type": refusal.kind,
            "param": refusal.param,
            "code": refusal.code,
            **refusal.more,
        }
    }


def as_anthropic(refusal: Refusal) -> dict[str, Any]:
    """Return the body of an error as Anthropic's API has it."""
    kind = _ANTHROPIC.get(refusal.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": refusal.message}}


def as_ollama(refusal: Refusal) -> dict[str, Any]:
    """Return the body of an error as Ollama's API has it."""
    return {"error": refusal.message}


def path_of(scope: Mapping[str, Any]) -> str:
    """Return the path that is asked for, without that under which the application is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    below = path.removeprefix(root)
    return below if below.startswith("/") else path


def shape_of(path: str, refusal: Refusal) -> dict[str, Any]:
    """Return the body of an error in the shape of the API that a path belongs to."""
    if path.removeprefix("/v1").startswith("/messages"):
        return as_anthropic(refusal)
    if path.startswith("/api/"):
        return as_ollama(refusal)
    return as_openai(refusal)
