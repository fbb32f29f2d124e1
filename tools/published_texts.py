"""Texts that llama.cpp writes greedily with published models which come as packages.

    python tools/published_texts.py SERVER tests/data/llama_cpp

``SERVER`` is llama.cpp's ``llama-server``. Models and prompts are those of
``tests/harness/published_models.py``; what is kept are the ids of the tokens that follow.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.published_models import MODELS, N_TOKENS, model_path, prompts

from mtpcore import load_model

if TYPE_CHECKING:
    from collections.abc import Iterator

_PORT = 18080


def main() -> None:
    """Write the texts of all models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    texts: dict[str, list[list[int]]] = {}
    for name in MODELS:
        path = model_path(name)
        with load_model(path) as model, served(args.server, path):
            texts[name] = [complete(prompt) for prompt in prompts(model)]
    (args.folder / "published_texts.json").write_text(json.dumps(texts) + "\n")


@contextmanager
def served(server: Path, path: Path) -> Iterator[None]:
    """Run the server with a model, one thread and nothing that changes its arithmetic."""
    options = ["-c", "1024", "-np", "1", "-t", "1", "-fa", "off", "--no-webui"]
    command = [server, "-m", path, "--port", _PORT, *options]
    with subprocess.Popen([*map(str, command)], stderr=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None and not is_ready():
                time.sleep(0.2)
            yield
        finally:
            process.terminate()


def is_ready() -> bool:
    """Say whether the server answers."""
    try:
        return bool(ask("health").get("status") == "ok")
    except OSError:
        return False


def complete(prompt: list[int]) -> list[int]:
    """Return the tokens that follow a prompt."""
    asked = {
        "prompt": prompt,
        "n_predict": N_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_tokens": True,
        "cache_prompt": False,
    }
    return [int(token) for token in ask("completion", asked)["tokens"]]


def ask(route: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the server's answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{_PORT}/{route}", data, headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


if __name__ == "__main__":
    main()
