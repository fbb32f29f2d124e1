"""Streams of events over HTTP: begun at once, kept alive, ended when the client goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mtpcore.serving.refusals import (
    Refusal,
    as_anthropic,
    as_ollama,
    as_openai,
    refusal_of,
)

__all__ = [
    "COMMENT",
    "EventStream",
    "encode_event",
    "encode_line",
    "encode_refusal",
    "until_gone",
    "wait_until_gone",
]

COMMENT = b":\n\n"
"""What says in a stream of events that it is still there."""

T = TypeVar("T")


def encode_line(data: object) -> bytes:
    """Return a line of newline-delimited JSON."""
    return msgspec.json.encode(data) + b"\n"


def encode_event(data: object, name: str = "") -> bytes:
    """Return an event as server-sent events have it."""
    begin = f"event: {name}\n".encode() if name else b""
    return begin + b"data: " + msgspec.json.encode(data) + b"\n\n"


def encode_refusal(path: str, refusal: Refusal, n_events: int = 0) -> bytes:
    """Return the last event of a stream that fails, as the API has it that a path belongs to.

    Parameters
    ----------
    path : str
        What was asked for.
    refusal : Refusal
    n_events : int
        Those before it, where events are numbered.
    """
    below = path.removeprefix("/v1")
    if path.startswith("/api/"):
        return encode_line(as_ollama(refusal))
    if below.startswith("/messages"):
        return encode_event(as_anthropic(refusal), "error")
    if below.startswith("/responses"):
        error = as_openai(refusal)["error"]
        facts = {name: error[name] for name in ("code", "message", "param")}
        facts |= {"sequence_number": n_events, "error": error}
        return encode_event({"type": "error", **facts}, "error")
    return encode_event(as_openai(refusal))


class EventStream(Response):
    """An answer in pieces.

    Headers go out at once, with a comment, however long the prompt is; another comment follows
    where nothing else was sent for a while. Where the client goes away the pieces are closed, which
    frees their sequences. What they raise becomes a last event.

    Parameters
    ----------
    pieces : async generator of bytes
    spell : callable
        Returns a refusal as an event.
    keep_alive : float
        Seconds without an event before a comment is sent.
    media_type : str
        Comments are for ``text/event-stream`` alone.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        spell: Callable[[Refusal], bytes],
        keep_alive: float,
        media_type: str = "text/event-stream",
    ) -> None:
        self.status_code, self.background, self.media_type = 200, None, media_type
        self._pieces, self._spell, self._keep_alive = pieces, spell, keep_alive
        self._comment = COMMENT if media_type == "text/event-stream" else b""
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""

        async def say(body: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": more})

        gone = asyncio.create_task(wait_until_gone(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if self._comment:
                await say(self._comment)
            try:
                while (piece := await self._next(gone, say)) is not None:
                    await say(piece)
            except _Gone:
                return
            except Exception as error:
                await say(self._spell(refusal_of(error, is_asked=False)))
            await say(b"", more=False)
        except OSError:  # the connection broke while something was sent
            return
        finally:
            gone.cancel()
            await self._pieces.aclose()

    async def _next(
        self, gone: asyncio.Task[None], say: Callable[[bytes], Awaitable[None]]
    ) -> bytes | None:
        """Return the next piece; None: there is none."""
        task = asyncio.ensure_future(anext(self._pieces, None))
        try:
            while True:
                done, _ = await asyncio.wait(
                    {task, gone}, timeout=self._keep_alive, return_when=asyncio.FIRST_COMPLETED
                )
                if task in done:
                    return task.result()
                if gone in done:
                    raise _Gone
                if self._comment:
                    await say(self._comment)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})


async def until_gone(request: Request, work: Awaitable[T]) -> T:
    """Return the result of work, which is given up where the client goes away.

    Raises
    ------
    Refusal
        It went; nobody reads that.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(wait_until_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Refusal(499, "the client went away")
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


class _Gone(Exception):
    """The client went away."""


async def wait_until_gone(receive: Receive) -> None:
    """Return when the client went away; it reads what else comes, and drops it."""
    while (await receive())["type"] != "http.disconnect":
        pass
