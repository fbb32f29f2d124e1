"""Bodies of requests: read within limits, and checked."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from mtpcore.serving.refusals import Refusal

__all__ = ["note_once", "read_body", "read_bytes", "read_fields", "read_list"]

T = TypeVar("T")
log = logging.getLogger("mtpcore")
_PATH = re.compile(r" - at `\$\.?(.*?)`$")
_SAID: set[str] = set()
"""What was noted: each is once."""
_MANY = 1000


async def read_body(request: Request, most: int) -> dict[str, Any]:
    """Return the JSON object of a request.

    Raises
    ------
    Refusal
        It is longer than ``most`` bytes, or no JSON object.
    """
    fields = await _read_json(request, most)
    if not isinstance(fields, dict):
        raise Refusal(400, "the request is no JSON object")
    return fields


async def read_list(request: Request, most: int, kind: type[T]) -> list[T]:
    """Return the JSON array of a request, each of its items checked.

    Raises
    ------
    Refusal
        It is longer than ``most`` bytes, or no array of such items.
    """
    items = await _read_json(request, most)
    try:
        return msgspec.convert(items, list[kind])  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        raise Refusal(400, str(error)) from None


async def read_bytes(request: Request, most: int) -> bytes:
    """Return the body of a request.

    Raises
    ------
    Refusal
        It is longer than ``most`` bytes, or the client left.
    """
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise Refusal(413, f"the request is longer than {most} bytes")
    except ClientDisconnect:
        raise Refusal(400, "the client left while it sent the request") from None
    return bytes(body)


async def _read_json(request: Request, most: int) -> Any:
    body = await read_bytes(request, most)
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refusal(400, f"the request is no JSON: {error}") from None


def read_fields(
    fields: Mapping[str, Any], kind: type[T], harmless: frozenset[str] = frozenset()
) -> T:
    """Return the fields of a request, checked; null stands for a field that is left out.

    A field that nobody reads is noted in the log once, unless it is known to be ``harmless``.

    Raises
    ------
    Refusal
        A field has a value that makes no sense; ``param`` is its path.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    known = {field.encode_name for field in msgspec.structs.fields(kind)}  # type: ignore[arg-type]
    for name in given.keys() - known - harmless:
        note_once(f"requests have a field that nothing reads: {name[:80]!r}")
    try:
        return msgspec.convert(given, kind, str_keys=True)
    except msgspec.ValidationError as error:
        message, found = str(error), _PATH.search(str(error))
        raise Refusal(400, message, param=found[1] if found else None) from None


def note_once(text: str) -> None:
    """Note in the log what is not done of requests, once for each text."""
    if text not in _SAID and len(_SAID) < _MANY:
        _SAID.add(text)
        log.warning("%s (said once)", text[:200])
