"""What a server says of itself and its model, and what it does with texts but write them."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mtpcore.gguf import Tokenizer
from mtpcore.serving.answers import Service
from mtpcore.serving.bodies import read_body, read_fields
from mtpcore.serving.chat import ChatFields, conversation_of
from mtpcore.serving.prompts import encode_conversation
from mtpcore.serving.refusals import Refusal, refusal_of
from mtpcore.serving.replies import reply
from mtpcore.version import version

__all__ = [
    "apply_template",
    "detokenize",
    "show_health",
    "show_metrics",
    "show_model",
    "show_models",
    "show_props",
    "tokenize",
]


async def show_health(service: Service, request: Request) -> Response:
    """Say that the server is there."""
    return reply({"status": "ok"})


async def show_models(service: Service, request: Request) -> Response:
    """List the models: the one that there is, and each of its adapters as one more."""
    return reply({"object": "list", "data": [*_models(service).values()]})


async def show_model(service: Service, request: Request) -> Response:
    """Show the model of a name."""
    name, models = request.path_params["name"], _models(service)
    if name not in models:
        there = ", ".join(map(repr, models))
        raise Refusal(404, f"no such model: {name!r}; there is {there}", code="model_not_found")
    return reply(models[name])


def _models(service: Service) -> dict[str, dict[str, Any]]:
    """Return what there is to say of the model, and of it with each adapter alone, by name."""
    model, n_ctx = service.lm.model, service.lm.n_ctx
    own = {
        "id": service.name,
        "object": "model",
        "created": service.created,
        "owned_by": "mtpcore",
        "max_model_len": n_ctx,
        "meta": {
            "n_ctx": n_ctx,
            "n_ctx_train": getattr(model.hparams, "n_ctx_train", 0),
            "size": model.n_bytes,
            "architecture": model.architecture,
        },
    }
    adapted = {
        name: own | {"id": name, "parent": service.name, "root": str(adapter.path)}
        for name, adapter in service.lm.adapters.items()
    }
    return adapted | {service.name: own}


async def show_props(service: Service, request: Request) -> Response:
    """Show how texts are written here, as llama.cpp's server does."""
    lm = service.lm
    template = lm.model.chat_template
    cross = lm.generator.cross
    return reply(
        {
            "default_generation_settings": {"n_ctx": lm.n_ctx, "params": lm.sampling},
            "total_slots": service.n_at_once,
            "model_alias": service.name,
            "model_path": str(lm.model.path),
            "chat_template": template.source if template else "",
            "build_info": f"mtpcore {version()}",
            "system_fingerprint": service.fingerprint,
            "guarantee": cross.llm.guarantee,
            "draft": lm.generator.draft,
            "drafters": list(cross.drafters),
        }
    )


async def show_metrics(service: Service, request: Request) -> Response:
    """Show counts and times for Prometheus."""
    headers = {"process-start-time-unix": str(service.created)}  # as llama.cpp's server
    return Response(
        service.metrics.show(), headers=headers, media_type=service.metrics.content_type
    )


class TokenizeFields(msgspec.Struct):
    """A text to turn into tokens, as llama.cpp's server takes it."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


async def tokenize(service: Service, request: Request) -> Response:
    """Turn a text into tokens."""
    fields = read_fields(await read_body(request, service.settings.max_body), TokenizeFields)
    tokenizer = _tokenizer(service)

    def encode() -> list[Any]:
        tokens = tokenizer.encode(
            fields.content, add_special=fields.add_special, parse_special=fields.parse_special
        )
        if not fields.with_pieces:
            return tokens
        return [{"id": token, "piece": _piece(tokenizer.token_bytes(token))} for token in tokens]

    return reply({"tokens": await anyio.to_thread.run_sync(encode)})


def _piece(raw: bytes) -> str | list[int]:
    """Return what a token writes; a part of a character as its bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


class DetokenizeFields(msgspec.Struct):
    """Tokens to turn into a text."""

    tokens: list[int]


async def detokenize(service: Service, request: Request) -> Response:
    """Turn tokens into a text, control tokens included."""
    fields = read_fields(await read_body(request, service.settings.max_body), DetokenizeFields)
    try:
        return reply({"content": _tokenizer(service).decode(fields.tokens, special=True)})
    except Exception as error:
        raise refusal_of(error, is_asked=True) from error


async def apply_template(service: Service, request: Request) -> Response:
    """Write a conversation as the model reads it."""
    fields = read_fields(await read_body(request, service.settings.max_body), ChatFields)
    tokens = await encode_conversation(service, conversation_of(fields))
    return reply({"prompt": service.lm.tokenizer.decode(tokens, special=True)})


def _tokenizer(service: Service) -> Tokenizer:
    try:
        return service.lm.tokenizer
    except Exception as error:
        raise refusal_of(error, is_asked=True) from error
