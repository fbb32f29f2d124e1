"""llama-server with one thread, plain and with each of its n-gram drafters."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from itertools import chain
from types import TracebackType
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import mtpcore

__all__ = ["MODES", "PLAIN", "LlamaServer", "head_mode"]

PLAIN = "plain"
_PATIENCE = 60.0


def _map(name: str, key: int, longest: int) -> list[str]:
    option = f"--spec-{name}-size"
    return ["--spec-type", name, f"{option}-n", str(key), f"{option}-m", str(longest)]


def _mod(key: int, least: int, most: int) -> list[str]:
    lengths = {"match": key, "min": least, "max": most}
    options = [[f"--spec-ngram-mod-n-{name}", str(n)] for name, n in lengths.items()]
    return ["--spec-type", "ngram-mod", *chain.from_iterable(options)]


MODES: dict[str, list[str]] = {
    PLAIN: [],
    "ngram-simple (12, 48)": _map("ngram-simple", 12, 48),
    "ngram-simple (3, 16)": _map("ngram-simple", 3, 16),
    "ngram-map-k (12, 48)": _map("ngram-map-k", 12, 48),
    "ngram-map-k (3, 16)": _map("ngram-map-k", 3, 16),
    "ngram-map-k4v (12, 48)": _map("ngram-map-k4v", 12, 48),
    "ngram-map-k4v (3, 16)": _map("ngram-map-k4v", 3, 16),
    "ngram-mod (24, 48)": _mod(24, 48, 64),
    "ngram-mod (3, 1)": _mod(3, 1, 16),
    "ngram-cache": ["--spec-type", "ngram-cache"],
}
"""Options by name: the authors' settings (lengths of a key and of a draft; for ngram-mod of a key
and the least of a draft), and shorter ones."""


def head_mode(head: str) -> dict[str, list[str]]:
    """Return its options with a head of EAGLE-3's in a file, by a name."""
    drafts = ["--spec-type", "draft-eagle3", "--spec-draft-n-max", "3"]
    return {"EAGLE-3, 3": ["--model-draft", head, *drafts, "--threads-draft", "1"]}


class LlamaServer:
    """A server that has learnt nothing yet, as a context manager.

    Parameters
    ----------
    program, model : str
        Paths.
    options : list of str
        One of ``MODES``, or of ``head_mode``.
    n_ctx : int
    """

    def __init__(self, program: str, model: str, options: list[str], n_ctx: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [
                *(program, "--model", model, "--ctx-size", str(n_ctx), "--parallel", "1"),
                *("--threads", "1", "--threads-batch", "1", "--cache-ram", "0", "--no-webui"),
                *("--host", "127.0.0.1", "--port", str(port), *options),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> LlamaServer:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                self._ask("/health")
            except (URLError, ConnectionError):
                if self._process.poll() is not None or time.monotonic() > until:
                    self._process.kill()
                    raise
                time.sleep(0.05)
            else:
                return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait()

    def complete(self, prompt: list[int], sampling: mtpcore.Sampling, n: int) -> int:
        """Let it write at most ``n`` tokens after a prompt, and return how many it wrote."""
        made = self._ask(
            "/completion",
            prompt=prompt,
            n_predict=n,
            samplers=["temperature"],
            temperature=sampling.temperature,
            seed=sampling.seed or 0,
            cache_prompt=False,
        )
        return int(made["tokens_predicted"])

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that it has used so far."""
        with open(f"/proc/{self._process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _ask(self, path: str, **what: Any) -> dict[str, Any]:
        body = json.dumps(what).encode() if what else None
        request = Request(self._url + path, body, {"Content-Type": "application/json"})
        with urlopen(request) as answer:
            found: dict[str, Any] = json.load(answer)
        return found
