"""The ASGI application: routes, and what is around them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mtpcore.lm import LM
from mtpcore.serving import adapters, embeddings, facts, flow, ollama_models, page, slots
from mtpcore.serving.access import AccessCheck
from mtpcore.serving.answers import Service
from mtpcore.serving.chat import answer_chat, count_chat_tokens
from mtpcore.serving.completions import answer_completions
from mtpcore.serving.llama_cpp import answer_completion, answer_infill
from mtpcore.serving.messages import answer_messages, count_tokens
from mtpcore.serving.ollama import answer_ollama_chat, answer_ollama_generate
from mtpcore.serving.refusals import Refusal, path_of, refusal_of, shape_of
from mtpcore.serving.replies import reply
from mtpcore.serving.responses import answer_responses, count_response_tokens
from mtpcore.serving.settings import ServerSettings

__all__ = ["access_middleware", "build_app"]

Handler = Callable[[Service, Request], Awaitable[Response]]

_ROUTES: list[tuple[str, str, Handler]] = [
    ("POST", "/v1/chat/completions", answer_chat),
    ("POST", "/v1/chat/completions/input_tokens", count_chat_tokens),
    ("POST", "/v1/completions", answer_completions),
    ("POST", "/completion", answer_completion),
    ("POST", "/infill", answer_infill),
    ("POST", "/v1/responses", answer_responses),
    ("POST", "/embedding", embeddings.answer_plain_embeddings),
    ("POST", "/embeddings", embeddings.answer_plain_embeddings),  # before the next, as llama.cpp's
    ("POST", "/v1/embeddings", embeddings.answer_embeddings),
    ("POST", "/v1/responses/input_tokens", count_response_tokens),
    ("POST", "/v1/messages", answer_messages),
    ("POST", "/v1/messages/count_tokens", count_tokens),
    ("POST", "/api/chat", answer_ollama_chat),
    ("POST", "/api/generate", answer_ollama_generate),
    ("POST", "/api/embed", embeddings.answer_ollama_embed),
    ("POST", "/api/embeddings", embeddings.answer_ollama_embeddings),
    ("GET", "/api/tags", ollama_models.show_tags),
    ("POST", "/api/show", ollama_models.show_one),
    ("GET", "/api/ps", ollama_models.show_loaded),
    ("GET", "/api/version", ollama_models.show_version),
    ("GET", "/", page.show_page),
    ("GET", "/page.js", page.show_script),
    ("GET", "/cross", flow.show_cross),
    ("GET", "/v1/models", facts.show_models),
    ("GET", "/v1/models/{name:path}", facts.show_model),
    ("GET", "/health", facts.show_health),
    ("GET", "/v1/health", facts.show_health),
    ("GET", "/props", facts.show_props),
    ("GET", "/slots", slots.show_slots),
    ("POST", "/slots/{id}", slots.change_slot),
    ("GET", "/metrics", facts.show_metrics),
    ("GET", "/lora-adapters", adapters.show_adapters),
    ("POST", "/lora-adapters", adapters.change_adapters),
    ("POST", "/tokenize", facts.tokenize),
    ("POST", "/detokenize", facts.detokenize),
    ("POST", "/apply-template", facts.apply_template),
]


def build_app(lm: LM, settings: ServerSettings | None = None) -> Starlette:
    """Return an ASGI application that serves an LM, for uvicorn or any other server.

    The LM stays the caller's: close it after the application has ended.

    Parameters
    ----------
    lm : LM
    settings : ServerSettings, optional

    Examples
    --------
    >>> from mtpcore import LM
    >>> with LM("demo") as lm:
    ...     app = build_app(lm)
    """
    settings = settings or ServerSettings()
    service = Service(lm, settings)
    # A path without its version is what older clients of llama.cpp's server ask for.
    routes = [
        Route(path, _serve(service, handler), methods=[method])
        for method, full, handler in _ROUTES
        for path in dict.fromkeys((full, full.removeprefix("/v1")))
    ]
    return Starlette(
        routes=routes,
        middleware=access_middleware(settings),
        exception_handlers={HTTPException: _refuse_path},
    )


def access_middleware(settings: ServerSettings) -> list[Middleware]:
    """Return what stands before an application that heeds who may ask."""
    middleware = []
    if settings.origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.origins),
                allow_methods=["*"],
                allow_headers=["*"],
            )
        )
    middleware.append(Middleware(AccessCheck, settings=settings))
    return middleware


def _serve(service: Service, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint whose errors have the shape of the API."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(service, request)
        except Exception as error:
            refusal = refusal_of(error, is_asked=True)
            body = shape_of(path_of(request.scope), refusal)
            return reply(body, refusal.status, refusal.headers)

    return endpoint


async def _refuse_path(request: Request, error: Exception) -> Response:
    """Answer a path, or a method, that there is not."""
    assert isinstance(error, HTTPException)
    refusal = Refusal(
        error.status_code,
        f"{request.method} {request.url.path}: {error.detail}",
        code="not_found" if error.status_code == 404 else None,
    )
    return reply(shape_of(path_of(request.scope), refusal), refusal.status)
