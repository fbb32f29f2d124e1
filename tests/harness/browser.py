"""A browser without a window, driven over the DevTools protocol; nothing but Chromium is needed."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Browser", "BrowserPage", "chromium"]

_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
)
_KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, " ": 32}
_PATIENCE = 60.0
"""Seconds after which a browser that says nothing has failed."""


def chromium() -> str | None:
    """Return the path of Chromium; None where it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """Chromium, which reads commands from a pipe and writes answers and events to another.

    Parameters
    ----------
    path : str
    profile : Path
        A folder of its own.
    """

    def __init__(self, path: str, profile: Path) -> None:
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        # The protocol's pipes are descriptors 3 and 4 there; here these may be anything.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (commands, answers)]
        shell = f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", path, *_FLAGS, f"--user-data-dir={profile}"],
            pass_fds=ends,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for end in (commands, answers, *ends):
            os.close(end)
        self._rest, self._n_sent = b"", 0
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        """End it."""
        os.close(self._to)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command; return its result. What happens meanwhile is kept in ``events``."""
        self._n_sent += 1
        message = {"id": self._n_sent, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._n_sent:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def send_until(self, event: str, method: str, session: str, **params: Any) -> None:
        """Send a command, and wait for an event that follows from it."""
        n = len(self.events)
        self.send(method, session, **params)
        while (event, session) not in [
            (one.get("method"), one.get("sessionId")) for one in self.events[n:]
        ]:
            self.events.append(self._read())

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(end - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            part = os.read(self._from, 1 << 20)
            assert part, "the browser ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    @contextmanager
    def page(self, *, width: int = 1280, height: int = 800) -> Iterator[BrowserPage]:
        """Open an empty page that shares no storage with others."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)
        attached = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = BrowserPage(self, attached["sessionId"])
        page.send("Runtime.enable")
        page.send("Log.enable")
        page.send("Page.enable")
        page.resize(width, height)
        try:
            yield page
        finally:
            self.send("Target.disposeBrowserContext", browserContextId=context)


class BrowserPage:
    """A page of a browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the protocol."""
        return self._browser.send(method, self._session, **params)

    @property
    def complaints(self) -> list[str]:
        """Exceptions of scripts, and what the browser refused or did not find."""
        mine = [one for one in self._browser.events if one.get("sessionId") == self._session]
        thrown = [
            one["params"]["exceptionDetails"].get("exception", {}).get("description", "")
            for one in mine
            if one["method"] == "Runtime.exceptionThrown"
        ]
        return thrown + [
            one["params"]["entry"]["text"]
            for one in mine
            if one["method"] == "Log.entryAdded" and one["params"]["entry"]["level"] == "error"
        ]

    def resize(self, width: int, height: int) -> None:
        """Give the window another size, in pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, **features: str) -> None:
        """Set what the user prefers: ``color_scheme="dark"``, ``reduced_motion="reduce"``."""
        named = [
            {"name": f"prefers-{name.replace('_', '-')}", "value": value}
            for name, value in features.items()
        ]
        self.send("Emulation.setEmulatedMedia", features=named)

    def open(self, url: str) -> None:
        """Go to an address, and wait until it is loaded."""
        self._browser.send_until("Page.loadEventFired", "Page.navigate", self._session, url=url)

    def reload(self) -> None:
        """Load the page anew."""
        self._browser.send_until("Page.loadEventFired", "Page.reload", self._session)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression; of a promise what it brings."""
        found = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = 30.0) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({expression})"):
            assert time.monotonic() < end, (
                f"{expression} is not true; complaints: {self.complaints}"
            )
            time.sleep(0.02)

    def text(self, selector: str) -> list[str]:
        """Return the texts of all elements that a selector finds."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})]"
        return self.evaluate(f"{found}.map((one) => one.innerText ?? one.textContent)")

    def click(self, selector: str) -> None:
        """Click in the middle of an element."""
        place = self.evaluate(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            " one.scrollIntoView({block: 'nearest'}); const box = one.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send(
                "Input.dispatchMouseEvent",
                type=kind,
                x=place[0],
                y=place[1],
                button="left",
                clickCount=1,
            )

    def write(self, text: str) -> None:
        """Write a text where the focus is."""
        self.send("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key and let it go."""
        code = _KEYS.get(key, ord(key[0].upper()))
        text = {"Enter": "\r", " ": " "}.get(key, "")
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def picture(self) -> bytes:
        """Return what is seen as a PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])
