"""What Ollama's API says of a server and its model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from math import prod
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mtpcore.serving.adapters import LATEST
from mtpcore.serving.answers import Service
from mtpcore.serving.bodies import read_body, read_fields
from mtpcore.serving.refusals import Refusal
from mtpcore.serving.replies import reply
from mtpcore.version import version

__all__ = ["show_loaded", "show_one", "show_running", "show_tags", "show_version"]

_UNITS = ((10**9, "B"), (10**6, "M"), (10**3, "K"))


async def show_running(service: Service, request: Request) -> Response:
    """Say that the server is there, in the words that clients look for."""
    return PlainTextResponse("Ollama is running")


async def show_version(service: Service, request: Request) -> Response:
    """Say which version this is; it is one of mtpcore's."""
    return reply({"version": version()})


async def show_tags(service: Service, request: Request) -> Response:
    """List the models: there is one."""
    return reply({"models": [_model(service)]})


async def show_loaded(service: Service, request: Request) -> Response:
    """List the models that are loaded: the same one, which stays so."""
    is_on_host = service.lm.generator.cross.llm.runner.backend.on_host
    shares = {
        "size_vram": 0 if is_on_host else service.lm.model.n_bytes,
        "context_length": service.lm.n_ctx,
    }
    return reply({"models": [_model(service) | shares]})


class ShowFields(msgspec.Struct):
    """The name of a model; older clients call it ``name``."""

    model: str = ""
    name: str = ""
    verbose: bool = False


async def show_one(service: Service, request: Request) -> Response:
    """Show what is in the file of a model; arrays are shown as null."""
    fields = read_fields(
        await read_body(request, service.settings.max_body), ShowFields, frozenset(("system",))
    )
    name = fields.model or fields.name
    if name.removesuffix(LATEST) != service.name.removesuffix(LATEST):
        raise Refusal(404, f"no such model: {name!r}; there is {service.name!r}")
    model = service.lm.model
    template = model.chat_template.source if model.chat_template is not None else ""
    info = {
        key: value if isinstance(value, (bool, int, float, str)) else None
        for key, value in model.metadata.items()
    }
    return reply(
        {
            "modified_at": _changed(service),
            "template": template,
            "details": _details(service),
            "model_info": info | {"general.parameter_count": _n_weights(service)},
            "capabilities": [*_capabilities(service)],
        }
    )


def _capabilities(service: Service) -> Iterator[str]:
    """Yield what a model is for, as far as its file says so."""
    model = service.lm.model
    yield "completion"
    if model.chat_template is not None and "tools" in model.chat_template.source:
        yield "tools"
    if model.has_tokenizer and model.tokenizer.fills_in:
        yield "insert"
    if f"{model.architecture}.pooling_type" in model.metadata:
        yield "embedding"


def _model(service: Service) -> dict[str, Any]:
    return {
        "name": service.name,
        "model": service.name,
        "modified_at": _changed(service),
        "size": service.lm.model.n_bytes,
        "digest": service.digest,
        "details": _details(service),
    }


def _changed(service: Service) -> str:
    seconds = service.lm.model.path.stat().st_mtime
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _details(service: Service) -> dict[str, Any]:
    model = service.lm.model
    return {
        "parent_model": "",
        "format": "gguf",
        "family": model.architecture,
        "families": [model.architecture],
        "parameter_size": _spell_count(_n_weights(service)),
        "quantization_level": _most_used_type(service),
    }


def _n_weights(service: Service) -> int:
    return sum(prod(tensor.shape) for tensor in service.lm.model.tensors.values())


def _spell_count(n: int) -> str:
    for unit, letter in _UNITS:
        if n >= unit:
            return f"{n / unit:.1f}{letter}"
    return str(n)


def _most_used_type(service: Service) -> str:
    """Return the type in which most weights are stored."""
    counts: Counter[str] = Counter()
    for tensor in service.lm.model.tensors.values():
        counts[tensor.type_name] += prod(tensor.shape)
    return max(counts, key=counts.__getitem__)
