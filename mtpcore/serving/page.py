"""The page at ``/``: a document with its styles, and a script; nothing comes from elsewhere.

What browsers may do on it is as little as it needs (``Content-Security-Policy``): text of a model
cannot become a script, a style or a request, even if the page's own script were to let it.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from mtpcore.serving.answers import Service
from mtpcore.serving.ollama_models import show_running
from mtpcore.serving.refusals import Refusal

__all__ = ["show_page", "show_script"]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'sha256-{style}'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


async def show_page(service: Service, request: Request) -> Response:
    """Show the page to browsers; other clients are told that the server is there."""
    if service.settings.page and "text/html" in request.headers.get("accept", ""):
        response = _show(request, "index.html", "text/html")
        response.headers["content-security-policy"] = _policy()
    else:
        response = await show_running(service, request)
    response.headers["vary"] = "accept"
    return response


async def show_script(service: Service, request: Request) -> Response:
    """Show the page's script."""
    if not service.settings.page:
        raise Refusal(404, "there is no page here", code="not_found")
    return _show(request, "page.js", "text/javascript")


def _show(request: Request, name: str, media_type: str) -> Response:
    """Return a file of the page, or say that the browser's copy is the newest."""
    content = _read(name)
    headers = {
        "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
        "cache-control": "no-cache",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)


@cache
def _read(name: str) -> bytes:
    return files("mtpcore.serving").joinpath("page", name).read_bytes()


@cache
def _policy() -> str:
    """Return the page's policy, which allows the styles in it and no others."""
    style = _read("index.html").split(b"<style>")[1].split(b"</style>")[0]
    return _POLICY.format(style=b64encode(hashlib.sha256(style).digest()).decode())
