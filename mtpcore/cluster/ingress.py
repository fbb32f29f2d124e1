"""The ingress of a served cluster: it checks who asks, and hands requests to replicas."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mtpcore.cluster.forwarding import ForwardedRequest
from mtpcore.cluster.joining import join_crosses, join_metrics, join_slots
from mtpcore.serving import ServerSettings
from mtpcore.serving.application import access_middleware
from mtpcore.serving.bodies import read_bytes
from mtpcore.serving.refusals import Refusal, path_of, refusal_of, shape_of
from mtpcore.serving.replies import reply
from mtpcore.serving.streams import COMMENT, encode_refusal, wait_until_gone

__all__ = ["Ingress"]

log = logging.getLogger("mtpcore")
_STREAMS = (b"text/event-stream", b"application/x-ndjson")
_NUMBERED = re.compile(rb'^data: \{"type":"[\w.]+","sequence_number":(\d+)', re.MULTILINE)
_PROBE_SECONDS = 5.0
"""Who asks for the state wants to know it now."""
_TRIES = 2
"""Replicas that end one after the other, and none of them says anything new of an answer, before it
is given up: a request may be what ends them."""
_TEXT = re.compile(rb'"choices":\[\{"index":(\d+)|^data: \{"index":(\d+)')
"""Where an event says which text of the request it tells of."""


class Ingress:
    """The deployment that receives HTTP.

    Parameters
    ----------
    replicas : DeploymentHandle
        Of ``Replica``.
    access : mapping
        The fields of ``ServerSettings`` that say who may ask, and how much.
    patience : float
        Seconds that a request waits for a replica that takes it.
    """

    def __init__(
        self, replicas: DeploymentHandle[Any], access: Mapping[str, Any], patience: float
    ) -> None:
        self._replicas, self._patience = replicas, patience
        self._settings = ServerSettings(**access)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return what answers HTTP; the name is Ray's."""
        forward = _Forwarding(self._replicas, self._settings.max_body, self._patience)
        routes = [
            Route("/metrics", self._joined("/metrics", self._show_metrics)),
            Route("/slots", self._joined("/slots", self._show_slots)),
            Route("/cross", self._joined("/cross", self._show_cross)),
            Route("/slots/{id}", _refuse_slots, methods=["POST"]),
            Route("/lora-adapters", _refuse_adapters, methods=["POST"]),
            Route("/{path:path}", forward),
        ]
        return Starlette(routes=routes, middleware=access_middleware(self._settings))

    def _joined(
        self, path: str, join: Callable[[dict[str, bytes]], Response]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that shows what all replicas show under a path."""

        async def endpoint(request: Request) -> Response:
            asked = self._replicas.broadcast("show", path)
            try:
                # A replica that ends meanwhile shows nothing.
                found = await asked.results_async(timeout_s=self._patience, return_exceptions=True)
                return join(dict(one for one in found if isinstance(one, tuple)))
            except Exception as error:
                refusal = _refusal_of(error)
                return reply(shape_of(path, refusal), refusal.status, refusal.headers)

        return endpoint

    def _show_metrics(self, found: Mapping[str, bytes]) -> Response:
        from prometheus_client.exposition import CONTENT_TYPE_LATEST

        return Response(join_metrics(found), media_type=CONTENT_TYPE_LATEST)

    def _show_slots(self, found: Mapping[str, bytes]) -> Response:
        return reply(join_slots({name: msgspec.json.decode(one) for name, one in found.items()}))

    def _show_cross(self, found: Mapping[str, bytes]) -> Response:
        return reply(join_crosses([msgspec.json.decode(one) for one in found.values()]))


async def _refuse_slots(request: Request) -> Response:
    """Refuse to save and to restore: a slot belongs to a replica, and its file to one node."""
    return _refuse(request, "saves, restores and erases no slots: each belongs to one replica")


async def _refuse_adapters(request: Request) -> Response:
    """Refuse to set scales: replicas that come later would not have them."""
    return _refuse(request, "has the scales of default_adapters; a request may name others")


def _refuse(request: Request, what: str) -> Response:
    refusal = Refusal(501, f"a cluster {what}", kind="not_supported_error")
    return reply(shape_of(path_of(request.scope), refusal), refusal.status, refusal.headers)


class _Forwarding:
    """An ASGI application whose answers are those of replicas.

    Parameters
    ----------
    replicas : DeploymentHandle
    max_body : int
        Bytes of a request.
    patience : float
        Seconds that a request waits for a replica that takes it.
    """

    def __init__(self, replicas: DeploymentHandle[Any], max_body: int, patience: float) -> None:
        self._ask = replicas.options(method_name="answer", stream=True)
        self._max_body, self._patience = max_body, patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, until the client goes away."""
        answer = _ForwardedAnswer(path_of(scope), send)
        try:
            body = await read_bytes(Request(scope, receive), self._max_body)
        except Refusal as refusal:
            await answer.refuse(refusal)
            return
        request = ForwardedRequest.of(scope, body)
        task = asyncio.create_task(self._answer(request, answer))
        gone = asyncio.create_task(wait_until_gone(receive))
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            gone.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def _answer(self, request: ForwardedRequest, answer: _ForwardedAnswer) -> None:
        n_tries = 0
        while True:
            n_said = answer.n_said
            try:
                await self._answer_once(request, answer)
                return
            except RayActorError as error:  # its process ended, or cannot be reached
                n_tries = 1 if answer.n_said > n_said else n_tries + 1
                if n_tries == _TRIES or not answer.may_go_on:
                    await answer.refuse(_refusal_of(error))
                    return
                log.warning("a replica ended before its answer did; another one is asked")
                answer.begin_again()
            except Exception as error:
                await answer.refuse(_refusal_of(error))
                return

    async def _answer_once(self, request: ForwardedRequest, answer: _ForwardedAnswer) -> None:
        is_probe = path_of(request.scope).endswith("/health")
        patience = min(self._patience, _PROBE_SECONDS) if is_probe else self._patience
        response = self._ask.remote(request)
        is_over = False
        try:
            async with asyncio.timeout(patience):
                await anext(response)  # it was taken
            async for messages in response:
                for message in messages:
                    await answer.take(message)
            is_over = True
        except TimeoutError:
            raise Refusal(
                503,
                f"no replica took the request within {patience:g} s; try again later",
                kind="overloaded_error",
                code="no_replica",
                retry_after=5,
            ) from None
        finally:
            if not is_over:
                response.cancel()


class _ForwardedAnswer:
    """An answer as it was sent so far: begun once, and ended in the form that the client reads.

    A stream may be made of those of several replicas. What each of them would write is the same, to
    the byte but for times and what drafts brought; so of a later one the events are left out that
    the client has. Events of several texts come in any order, those of each text in one. Messages
    may be cut anywhere: an event is sent when all of it is there.

    Parameters
    ----------
    path : str
        What was asked for.
    send : callable
        ASGI's.

    Attributes
    ----------
    n_said : int
        Parts of the answer that were sent: events of a stream.
    """

    def __init__(self, path: str, send: Send) -> None:
        self._path, self._send = path, send
        self._start: Message | None = None  # held back while there is no body
        self._kind = b""  # of the answer that has begun
        self._n_sent: Counter[bytes] = Counter()  # events of each text
        self._n_had: Counter[bytes] = Counter()  # those of them that this replica has yet to repeat
        self._n_events = 0  # where they are numbered
        self._begun = b""  # an event of which this replica has sent a part
        self.n_said = 0

    @property
    def may_go_on(self) -> bool:
        """Whether another replica's answer can take up where this one was cut off."""
        return self._kind in _STREAMS or not self.n_said

    def begin_again(self) -> None:
        """Take the answer of another replica from its beginning."""
        self._n_had, self._begun = self._n_sent.copy(), b""

    async def take(self, message: Message) -> None:
        """Send a message of a replica, as far as it is new.

        Raises
        ------
        Refusal
            Another replica cannot repeat what the client has.
        """
        if message["type"] == "http.response.start":
            if self._kind:  # of another replica before
                if message["status"] != 200:
                    raise _ended()
                return
            self._start = message
            kind = dict(message["headers"]).get(b"content-type", b"").split(b";")[0]
            if kind in _STREAMS:
                await self._begin(kind)
            return
        body, is_last = message.get("body", b""), not message.get("more_body", False)
        if self._kind in _STREAMS:
            body = b"".join(self._new_events(body))
            if is_last and (self._n_had.total() or self._begun):
                raise _ended()
        elif body or is_last:
            self.n_said += 1
            await self._begin(b"whole")
        if self._kind and (body or is_last):
            await self._send({**message, "body": body})

    def _new_events(self, body: bytes) -> Iterator[bytes]:
        """Yield events that the client does not have, and comments."""
        end = b"\n\n" if self._kind == _STREAMS[0] else b"\n"
        *events, self._begun = (self._begun + body).split(end)
        for event in events:
            if event + end == COMMENT:
                yield COMMENT
                continue
            found = _TEXT.search(event)
            text = (found[1] or found[2]) if found else b""
            if self._n_had[text]:
                self._n_had[text] -= 1
                continue
            self.n_said += 1
            self._n_sent[text] += 1
            if number := _NUMBERED.search(event):
                self._n_events = int(number[1]) + 1
            yield event + end

    async def refuse(self, refusal: Refusal) -> None:
        """End the answer with an error, in the shape of the API.

        Raises
        ------
        Refusal
            A body that is no stream was cut off: no end would be true.
        """
        if not self._kind:
            body = shape_of(self._path, refusal)
            whole = reply(body, refusal.status, refusal.headers)
            start = {"status": whole.status_code, "headers": whole.raw_headers}
            await self._send({"type": "http.response.start", **start})
            await self._send({"type": "http.response.body", "body": whole.body})
        elif self._kind in _STREAMS:
            event = encode_refusal(self._path, refusal, self._n_events)
            await self._send({"type": "http.response.body", "body": event})
        else:
            raise refusal

    async def _begin(self, kind: bytes) -> None:
        if self._start is not None:
            start, self._start, self._kind = self._start, None, kind
            await self._send(start)


def _refusal_of(error: BaseException) -> Refusal:
    """Return what an error of Ray's means for whoever sent the request."""
    if isinstance(error, BackPressureError):
        return Refusal(
            429,
            "too many requests wait; try again later",
            kind="rate_limit_error",
            code="queue_full",
            retry_after=1,
        )
    if isinstance(error, RayTaskError):  # the replica's own
        return refusal_of(error, is_asked=False)
    if isinstance(error, RayError | RayServeException):
        log.warning("a replica ended: %s", str(error).partition("\n")[0])
        return _ended()
    return refusal_of(error, is_asked=False)


def _ended() -> Refusal:
    return Refusal(
        503,
        "the replica that wrote this answer has ended; try again",
        kind="overloaded_error",
        code="replica_ended",
        retry_after=1,
    )
