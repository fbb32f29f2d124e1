"""What Ollama's API says of a server and its model."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from math import prod
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mtpcore.serving.answers import Desk
from mtpcore.serving.bodies import read_body, read_fields
from mtpcore.serving.refusals import Refusal
from mtpcore.serving.replies import reply
from mtpcore.version import version

__all__ = ["show_loaded", "show_one", "show_running", "show_tags", "show_version"]

_UNITS = ((10**9, "B"), (10**6, "M"), (10**3, "K"))
_TAG = ":latest"
"""What clients add to a name that has no tag."""


async def show_running(desk: Desk, request: Request) -> Response:
    """Say that the server is there, in the words that clients look for."""
    return PlainTextResponse("Ollama is running")


async def show_version(desk: Desk, request: Request) -> Response:
    """Say which version this is; it is one of mtpcore's."""
    return reply({"version": version()})


async def show_tags(desk: Desk, request: Request) -> Response:
    """List the models: there is one."""
    return reply({"models": [_model(desk)]})


async def show_loaded(desk: Desk, request: Request) -> Response:
    """List the models that are loaded: the same one, which stays so."""
    is_on_host = desk.lm.generator.cross.llm.runner.backend.on_host
    shares = {
        "size_vram": 0 if is_on_host else desk.lm.model.n_bytes,
        "context_length": desk.lm.n_ctx,
    }
    return reply({"models": [_model(desk) | shares]})


class ShowFields(msgspec.Struct):
    """The name of a model; older clients call it ``name``."""

    model: str = ""
    name: str = ""
    verbose: bool = False


async def show_one(desk: Desk, request: Request) -> Response:
    """Show what is in the file of a model; arrays are shown as null."""
    fields = read_fields(
        await read_body(request, desk.settings.max_body), ShowFields, frozenset(("system",))
    )
    name = fields.model or fields.name
    if name.removesuffix(_TAG) != desk.name.removesuffix(_TAG):
        raise Refusal(404, f"no such model: {name!r}; there is {desk.name!r}")
    model = desk.lm.model
    template = model.chat_template.source if model.chat_template is not None else ""
    info = {
        key: value if isinstance(value, (bool, int, float, str)) else None
        for key, value in model.metadata.items()
    }
    return reply(
        {
            "modified_at": _changed(desk),
            "template": template,
            "details": _details(desk),
            "model_info": info | {"general.parameter_count": _n_weights(desk)},
            "capabilities": ["completion", *(["tools"] if "tools" in template else [])],
        }
    )


def _model(desk: Desk) -> dict[str, Any]:
    return {
        "name": desk.name,
        "model": desk.name,
        "modified_at": _changed(desk),
        "size": desk.lm.model.n_bytes,
        "digest": desk.digest,
        "details": _details(desk),
    }


def _changed(desk: Desk) -> str:
    seconds = desk.lm.model.path.stat().st_mtime
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _details(desk: Desk) -> dict[str, Any]:
    model = desk.lm.model
    return {
        "parent_model": "",
        "format": "gguf",
        "family": model.architecture,
        "families": [model.architecture],
        "parameter_size": _spell_count(_n_weights(desk)),
        "quantization_level": _most_used_type(desk),
    }


def _n_weights(desk: Desk) -> int:
    return sum(prod(tensor.shape) for tensor in desk.lm.model.tensors.values())


def _spell_count(n: int) -> str:
    for unit, letter in _UNITS:
        if n >= unit:
            return f"{n / unit:.1f}{letter}"
    return str(n)


def _most_used_type(desk: Desk) -> str:
    """Return the type in which most weights are stored."""
    counts: Counter[str] = Counter()
    for tensor in desk.lm.model.tensors.values():
        counts[tensor.type_name] += prod(tensor.shape)
    return max(counts, key=counts.__getitem__)
