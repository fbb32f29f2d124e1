"""What a server says of itself and its model, and what it does with texts but write them."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mtpcore.gguf import Tokenizer
from mtpcore.serving.answers import Desk
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
    "show_slots",
    "tokenize",
]


async def show_health(desk: Desk, request: Request) -> Response:
    """Say that the server is there."""
    return reply({"status": "ok"})


async def show_models(desk: Desk, request: Request) -> Response:
    """List the models: there is one."""
    return reply({"object": "list", "data": [_model(desk)]})


async def show_model(desk: Desk, request: Request) -> Response:
    """Show the model of a name."""
    name = request.path_params["name"]
    if name != desk.name:
        raise Refusal(
            404, f"no such model: {name!r}; there is {desk.name!r}", code="model_not_found"
        )
    return reply(_model(desk))


def _model(desk: Desk) -> dict[str, Any]:
    model, n_ctx = desk.lm.model, desk.lm.n_ctx
    trained = getattr(model.hparams, "n_ctx_train", 0)
    return {
        "id": desk.name,
        "object": "model",
        "created": desk.created,
        "owned_by": "mtpcore",
        "max_model_len": n_ctx,
        "meta": {
            "n_ctx": n_ctx,
            "n_ctx_train": trained,
            "size": model.n_bytes,
            "architecture": model.architecture,
        },
    }


async def show_props(desk: Desk, request: Request) -> Response:
    """Show how texts are written here, as llama.cpp's server does."""
    lm = desk.lm
    template = lm.model.chat_template
    cross = lm.generator.cross
    return reply(
        {
            "default_generation_settings": {"n_ctx": lm.n_ctx, "params": lm.sampling},
            "total_slots": desk.n_at_once,
            "model_alias": desk.name,
            "model_path": str(lm.model.path),
            "chat_template": template.source if template else "",
            "build_info": f"mtpcore {version()}",
            "system_fingerprint": desk.fingerprint,
            "guarantee": cross.llm.guarantee,
            "draft": lm.generator.draft,
            "drafters": list(cross.drafters),
        }
    )


async def show_slots(desk: Desk, request: Request) -> Response:
    """List the sequences, and which of them write."""
    n_busy = min(desk.n_texts, desk.n_at_once)
    return reply(
        [
            {"id": i, "n_ctx": desk.lm.n_ctx, "is_processing": i < n_busy}
            for i in range(desk.n_at_once)
        ]
    )


async def show_metrics(desk: Desk, request: Request) -> Response:
    """Show counts and times for Prometheus."""
    return Response(desk.metrics.show(), media_type=desk.metrics.content_type)


class TokenizeFields(msgspec.Struct):
    """A text to turn into tokens, as llama.cpp's server takes it."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


async def tokenize(desk: Desk, request: Request) -> Response:
    """Turn a text into tokens."""
    fields = read_fields(await read_body(request, desk.settings.max_body), TokenizeFields)
    tokenizer = _tokenizer(desk)

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


async def detokenize(desk: Desk, request: Request) -> Response:
    """Turn tokens into a text, control tokens included."""
    fields = read_fields(await read_body(request, desk.settings.max_body), DetokenizeFields)
    try:
        return reply({"content": _tokenizer(desk).decode(fields.tokens, special=True)})
    except Exception as error:
        raise refusal_of(error, is_asked=True) from error


async def apply_template(desk: Desk, request: Request) -> Response:
    """Write a conversation as the model reads it."""
    fields = read_fields(await read_body(request, desk.settings.max_body), ChatFields)
    tokens = await encode_conversation(desk, conversation_of(fields))
    return reply({"prompt": desk.lm.tokenizer.decode(tokens, special=True)})


def _tokenizer(desk: Desk) -> Tokenizer:
    try:
        return desk.lm.tokenizer
    except Exception as error:
        raise refusal_of(error, is_asked=True) from error
