"""A server in a thread of its own, at a port that is free."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from mtpcore.lm import LM
from mtpcore.serving import ServerSettings, build_app

__all__ = ["serving", "serving_app", "wait_until"]


def wait_until(holds: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until something holds that a server does by itself."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    assert holds()


@contextmanager
def serving(lm: LM, settings: ServerSettings | None = None) -> Iterator[str]:
    """Serve an LM; give the address."""
    with serving_app(build_app(lm, settings)) as address:
        yield address


@contextmanager
def serving_app(app: ASGIApp) -> Iterator[str]:
    """Serve an application; give the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=5, ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()
