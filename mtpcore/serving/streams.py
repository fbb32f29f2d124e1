"""Streams of events over HTTP: begun at once, kept alive, ended when the client goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from mtpcore.serving.answers import Answer
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
_MOST_HELD = 1 << 16
"""Bytes of a stream that are kept to be sent together."""

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
    where nothing else was sent for a while. Pieces that are there together are sent together. Where
    the client goes away the pieces are closed, which frees their sequences. What they raise becomes
    a last event.

    Parameters
    ----------
    answer : Answer
        What the pieces tell of.
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
        answer: Answer,
        pieces: AsyncGenerator[bytes, None],
        spell: Callable[[Refusal], bytes],
        keep_alive: float,
        media_type: str = "text/event-stream",
    ) -> None:
        self.status_code, self.background, self.media_type = 200, None, media_type
        self._pieces, self._spell, self._keep_alive = pieces, spell, keep_alive
        self._has_comments = media_type == "text/event-stream"
        self._held = bytearray()  # pieces that were not sent yet
        answer.pause = self._send_held
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        self._send, self._is_sending = send, False
        self._clock = asyncio.get_running_loop().time
        self._said = self._clock()
        tasks = [asyncio.create_task(self._write()), asyncio.create_task(wait_until_gone(receive))]
        if self._has_comments:
            tasks.append(asyncio.create_task(self._comment()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._pieces.aclose()

    async def _write(self) -> None:
        """Send all of it."""
        headers = self.raw_headers
        await self._put({"type": "http.response.start", "status": 200, "headers": headers})
        if self._has_comments:
            await self._say(COMMENT)
        try:
            async for piece in self._pieces:
                self._held += piece
                if len(self._held) > _MOST_HELD:
                    await self._send_held()
        except Exception as error:
            self._held += self._spell(refusal_of(error, is_asked=False))
        await self._send_held()
        await self._say(b"", more=False)

    async def _send_held(self) -> None:
        """Send what is there."""
        if self._held:
            held, self._held = bytes(self._held), bytearray()
            await self._say(held)

    async def _comment(self) -> None:
        """Say now and then that the stream is still there."""
        while True:
            silent = self._clock() - self._said
            if silent < self._keep_alive:
                await asyncio.sleep(self._keep_alive - silent)
            elif self._is_sending:  # to a client that does not read
                await asyncio.sleep(self._keep_alive)
            else:
                await self._say(COMMENT)

    async def _say(self, body: bytes, *, more: bool = True) -> None:
        self._is_sending = True
        await self._put({"type": "http.response.body", "body": body, "more_body": more})
        self._is_sending, self._said = False, self._clock()

    async def _put(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:  # the connection broke, which is no failure of the pieces
            raise asyncio.CancelledError from None


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


async def wait_until_gone(receive: Receive) -> None:
    """Return when the client went away; it reads what else comes, and drops it."""
    while (await receive())["type"] != "http.disconnect":
        pass
