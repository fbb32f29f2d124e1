"""A replica: a process with an LM and the server's application, which Ray starts and ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.types import Message

from mtpcore.cluster.forwarding import ForwardedRequest
from mtpcore.lm import LM
from mtpcore.serving import ServerSettings, build_app
from mtpcore.serving.draws import fix_draws

__all__ = ["Replica"]


class Replica:
    """Answers requests by an LM of its own.

    Parameters
    ----------
    model : str
        A file on this node, or the name of a model in the package.
    lm_options, server_options : mapping
        Arguments of ``LM``, and fields of ``ServerSettings``.
    """

    def __init__(
        self, model: str, lm_options: Mapping[str, Any], server_options: Mapping[str, Any]
    ) -> None:
        from ray import serve

        self._name = serve.get_replica_context().replica_id.unique_id
        self._lm = LM(model, **lm_options)
        self._app = build_app(self._lm, ServerSettings(**server_options))

    def __del__(self) -> None:
        """Close the LM; Ray calls this when the replica has answered all that it was asked."""
        if hasattr(self, "_lm"):
            self._lm.close()

    async def check_health(self) -> None:
        """Return when the thread of the model has done something; Ray asks now and then.

        Where that takes too long, or fails, Ray puts another replica in the place of this one.
        """
        await self._lm.run_between_rounds(lambda: None)

    async def answer(self, request: ForwardedRequest) -> AsyncGenerator[list[Message], None]:
        """Yield the messages of an answer, those together that are there at once.

        The first list is empty, and says that this replica took the request. Who closes the
        generator, or cancels the call, frees the sequences of the answer.
        """
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        answer = asyncio.create_task(self._run(request, messages))
        try:
            yield []
            while (message := await messages.get()) is not None:
                together = [message]
                while not messages.empty():
                    if (message := messages.get_nowait()) is None:
                        messages.put_nowait(None)
                        break
                    together.append(message)
                yield together
            await answer  # which may have failed
        finally:
            answer.cancel()
            await asyncio.wait({answer})

    async def show(self, path: str) -> tuple[str, bytes]:
        """Return the name of this replica, and what it shows under a path."""
        body = b""
        async for messages in self.answer(ForwardedRequest.to(path)):
            body += b"".join(message.get("body", b"") for message in messages)
        return self._name, body

    async def _run(
        self, request: ForwardedRequest, messages: asyncio.Queue[Message | None]
    ) -> None:
        """Let the application answer into a queue."""
        fix_draws(request.draws)  # of this task alone
        bodies = [{"type": "http.request", "body": request.body, "more_body": False}]

        async def receive() -> Message:
            if bodies:
                return bodies.pop()
            # There is no more: whoever goes away cancels the call.
            gone: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            return await gone

        try:
            await self._app(dict(request.scope), receive, messages.put)
        finally:
            messages.put_nowait(None)
