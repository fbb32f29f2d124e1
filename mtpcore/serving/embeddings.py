"""Embeddings: texts as vectors, over OpenAI's, llama.cpp's and Ollama's APIs."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from time import perf_counter
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from mtpcore.lm.embedding import Pooling
from mtpcore.serving.adapters import choose_adapters
from mtpcore.serving.answers import Service
from mtpcore.serving.bodies import read_body, read_fields
from mtpcore.serving.fields import HARMLESS, check_needless
from mtpcore.serving.prompts import PromptField, encode_prompts
from mtpcore.serving.refusals import Refusal
from mtpcore.serving.replies import reply
from mtpcore.serving.streams import until_gone

__all__ = [
    "answer_embeddings",
    "answer_ollama_embed",
    "answer_ollama_embeddings",
    "answer_plain_embeddings",
]

F32 = NDArray[np.float32]
_OF_OLLAMA = frozenset(("options", "keep_alive"))
"""How a model is loaded, which it is, and how texts are sampled: here none is written."""
_NORMS = {-1: False, 2: True}
"""What llama.cpp's server divides by: nothing, or the Euclidean length."""


class EmbeddingFields(msgspec.Struct, kw_only=True):
    """The fields of a request that are read; ``pooling`` and ``tap`` are those of ``LM.embed``."""

    model: str | None = None
    input: PromptField | None = None
    content: PromptField | None = None
    encoding_format: Literal["float", "base64"] = "float"
    embd_normalize: int | None = None
    dimensions: int | None = None
    pooling: Pooling | None = None
    tap: str = "hidden"


class EmbedFields(msgspec.Struct, kw_only=True):
    """The fields of a request to Ollama's ``/api/embed``."""

    model: str | None = None
    input: str | list[str] = msgspec.field(default_factory=list)
    truncate: bool = True
    dimensions: int | None = None
    pooling: Pooling | None = None
    tap: str = "hidden"


class OneEmbeddingFields(msgspec.Struct, kw_only=True):
    """The fields of a request to Ollama's ``/api/embeddings``, which is for one text."""

    model: str | None = None
    prompt: str = ""
    pooling: Pooling | None = None
    tap: str = "hidden"


async def answer_embeddings(service: Service, request: Request) -> Response:
    """Return a vector of each text, as OpenAI's API has it."""
    fields = await _read(service, request)
    pooling = fields.pooling or service.settings.pooling
    if pooling == "none":
        raise Refusal(
            400,
            "a text has one vector in this API; /embeddings returns those of its tokens",
            param="pooling",
        )
    prompts = await _encode(service, fields)
    vectors = await _embed(service, request, prompts, fields, _norm_of(fields))
    is_packed = fields.encoding_format == "base64"
    data = [
        {
            "object": "embedding",
            "index": i,
            "embedding": _pack(vector) if is_packed else vector.tolist(),
        }
        for i, vector in enumerate(vectors)
    ]
    n_tokens = sum(map(len, prompts))
    return reply(
        {
            "object": "list",
            "data": data,
            "model": fields.model or service.name,
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }
    )


async def answer_plain_embeddings(service: Service, request: Request) -> Response:
    """Return rows of each text as llama.cpp's server does: one, or without pooling each token's."""
    fields = await _read(service, request)
    if fields.encoding_format != "float":
        raise Refusal(
            400, "rows are numbers here; /v1/embeddings packs them", param="encoding_format"
        )
    prompts = await _encode(service, fields)
    vectors = await _embed(service, request, prompts, fields, _norm_of(fields))
    return reply(
        [
            {"index": i, "embedding": np.atleast_2d(vector).tolist()}
            for i, vector in enumerate(vectors)
        ]
    )


async def answer_ollama_embed(service: Service, request: Request) -> Response:
    """Return vectors of texts, as Ollama's API has them; a text that is too long is cut."""
    begin = perf_counter()
    given = await read_body(request, service.settings.max_body)
    fields = read_fields(given, EmbedFields, HARMLESS | _OF_OLLAMA)
    _refuse_dimensions(fields.dimensions)
    texts: PromptField = [fields.input] if isinstance(fields.input, str) else [*fields.input]
    prompts = await encode_prompts(service, texts, "input") if texts else []
    if fields.truncate:
        prompts = [_cut(service, prompt) for prompt in prompts]
    vectors = await _embed(service, request, prompts, fields, True) if prompts else []
    return reply(
        {
            "model": fields.model or service.name,
            "embeddings": [vector.tolist() for vector in vectors],
            "total_duration": int(1e9 * (perf_counter() - begin)),
            "load_duration": 0,
            "prompt_eval_count": sum(map(len, prompts)),
        }
    )


async def answer_ollama_embeddings(service: Service, request: Request) -> Response:
    """Return the vector of one text, not divided by its length, as Ollama's older route does."""
    given = await read_body(request, service.settings.max_body)
    fields = read_fields(given, OneEmbeddingFields, HARMLESS | _OF_OLLAMA)
    if not fields.prompt:  # by which clients have a model loaded
        return reply({"embedding": []})
    prompts = [_cut(service, one) for one in await encode_prompts(service, fields.prompt, "prompt")]
    (vector,) = await _embed(service, request, prompts, fields, False)
    return reply({"embedding": vector.tolist()})


async def _read(service: Service, request: Request) -> EmbeddingFields:
    given = await read_body(request, service.settings.max_body)
    check_needless(given)
    fields = read_fields(given, EmbeddingFields, HARMLESS)
    _refuse_dimensions(fields.dimensions)
    return fields


async def _encode(service: Service, fields: EmbeddingFields) -> list[list[int]]:
    if (fields.input is None) == (fields.content is None):
        raise Refusal(400, "give the texts as input, or as content", param="input")
    given, param = (fields.content, "content") if fields.input is None else (fields.input, "input")
    assert given is not None
    return await encode_prompts(service, given, param)


def _norm_of(fields: EmbeddingFields) -> bool | None:
    """Return whether vectors are to have length 1; None: as usual."""
    asked = fields.embd_normalize
    if asked is not None and asked not in _NORMS:
        raise Refusal(
            400,
            f"embd_normalize {asked} is not supported: 2 is the Euclidean length, -1 none",
            param="embd_normalize",
            code="unsupported_parameter",
        )
    return None if asked is None else _NORMS[asked]


def _refuse_dimensions(dimensions: int | None) -> None:
    """Refuse vectors of another width: a part of one means something in few models alone."""
    if dimensions is not None:
        raise Refusal(
            400,
            "dimensions is not supported: vectors are as wide as the model; leave it out",
            param="dimensions",
            code="unsupported_parameter",
        )


def _cut(service: Service, prompt: Sequence[int]) -> list[int]:
    """Return as much of a text as fits, with the token that ends it where there is one."""
    n_ctx, tokenizer = service.lm.n_ctx, service.lm.tokenizer
    if len(prompt) <= n_ctx:
        return [*prompt]
    ends = prompt[-1] == tokenizer.eos
    return [*prompt[: n_ctx - ends], *([prompt[-1]] if ends else [])]


async def _embed(
    service: Service,
    request: Request,
    prompts: Sequence[Sequence[int]],
    fields: EmbeddingFields | EmbedFields | OneEmbeddingFields,
    normalize: bool | None,
) -> list[F32]:
    """Read texts; their work ends where the client goes away, or the time is over."""
    for prompt in prompts:
        service.check_prompt(prompt)
    pooling = fields.pooling or service.settings.pooling
    with service.reading():
        work = service.lm.aembed(
            [[*prompt] for prompt in prompts],
            pooling=pooling,
            tap=fields.tap,
            normalize=normalize,
            adapters=choose_adapters(service.lm, fields.model, None),
        )
        vectors = await until_gone(request, asyncio.wait_for(work, service.settings.seconds))
    if not all(np.isfinite(vector).all() for vector in vectors):
        raise Refusal(500, "the model's rows are not finite", kind="server_error")
    service.metrics.observe_reading(sum(map(len, prompts)))
    return vectors


def _pack(vector: F32) -> str:
    """Return numbers as OpenAI's client reads them: float32, the low byte first."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
