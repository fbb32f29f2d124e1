"""Keys of what a request begins with: equal beginnings of conversations have equal keys."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

__all__ = ["prefix_keys"]

_FIRST = ("tools", "system", "instructions")
"""Fields that chat templates write before the conversation."""
_ADAPTERS = ("model", "lora")
"""Fields by which a request chooses adapters."""
_CONVERSATIONS = ("messages", "input", "input_prefix", "prompt")
_CHUNK = 512
"""Bytes after which a long message has a key: beginnings are found to within as many."""
_MOST = 512
"""Keys of a request. What has as many in common goes to one place all the same."""


def prefix_keys(path: str, body: bytes) -> tuple[bytes, ...]:
    """Return the keys of all beginnings of a request, the shortest first.

    There is one after each message, and one after each 512 bytes within a message. Two requests
    have as many in common as their prompts begin alike.

    Parameters
    ----------
    path : str
        What is asked for.
    body : bytes
        The request, in any API's form.

    Returns
    -------
    tuple of bytes
        Hashes of eight bytes, at most 512; empty where no text is continued, and where a request
        cannot be read.
    """
    if "embed" in path or "tokenize" in path:
        return ()
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return ()
    if not isinstance(fields, dict):
        return ()
    keys: list[bytes] = []
    # Texts of other adapters share nothing, however alike they are.
    adapters = msgspec.json.encode([fields.get(name) for name in _ADAPTERS])
    running = hashlib.blake2b(adapters, digest_size=8)
    for part in _parts_of(fields):
        for begin in range(0, len(part), _CHUNK):
            running.update(part[begin : begin + _CHUNK])
            is_last = begin + _CHUNK >= len(part)
            running.update(b"\0" if is_last else b"")
            keys.append(running.digest())
            if len(keys) == _MOST:
                return tuple(keys)
    return tuple(keys)


def _parts_of(fields: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield what a prompt is made of, in its order."""
    name = next((one for one in _CONVERSATIONS if fields.get(one)), None)
    if name is None:
        return
    for first in _FIRST:
        if fields.get(first):
            yield first.encode() + msgspec.json.encode(fields[first])
    said = fields[name]
    if isinstance(said, list) and said and all(isinstance(one, dict) for one in said):
        yield from map(msgspec.json.encode, said)
    elif isinstance(said, str):
        yield said.encode("utf-8", "surrogatepass")
    else:
        yield msgspec.json.encode(said)
