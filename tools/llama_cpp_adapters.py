"""Hold texts with adapters against those of llama.cpp's server, on one model of floats.

    python tools/llama_cpp_adapters.py MODEL LLAMA_SERVER

``MODEL`` is a GGUF file of F32 (``mtpcore quantize model.gguf f32.gguf --outtype f32``), so that
both compute the same but for the order of sums. Two adapters of random values are written; texts
are greedy, without any, with one, and with both at scales of their own. Exits with 1 where a text
differs; the log-probabilities of the first tokens are shown, to tell a near tie.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.adapters import matrices_of, write_adapter

from mtpcore import LM, Model, load_model

PROMPTS = "The capital of France is", "def fibonacci(n):", "Once upon a time there was a"
CHOICES: tuple[dict[str, float], ...] = ({}, {"one": 1.0}, {"one": 1.0, "two": 0.5})
N_TOKENS, SECONDS = 40, 60


def write_adapters(model: Model, folder: Path) -> dict[str, Path]:
    """Write an adapter of all matrices, and one of attention's with another rank and alpha."""
    shapes = {n: s for n, s in matrices_of(model).items() if n in model.tensors}
    attention = {n: s for n, s in shapes.items() if "attn" in n}
    paths = {name: folder / f"{name}.gguf" for name in ("one", "two")}
    kind = model.architecture
    write_adapter(paths["one"], kind, shapes, seed=1, rank=8, alpha=8.0, size=0.15)
    write_adapter(paths["two"], kind, attention, seed=2, rank=4, alpha=16.0, size=0.07)
    return paths


def ask(port: int, body: dict[str, Any]) -> dict[str, Any]:
    """Return the server's answer."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/completion",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def wait(port: int) -> None:
    """Wait until the server answers."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
        else:
            return
    raise SystemExit("the server does not answer")


def main() -> int:
    """Compare all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("server")
    args = parser.parse_args()
    n_different = 0
    with tempfile.TemporaryDirectory() as temporary, load_model(args.model) as model:
        paths = write_adapters(model, Path(temporary))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        given = [word for path in paths.values() for word in ("--lora", str(path))]
        floats = ["-ctk", "f32", "-ctv", "f32", "-fa", "off", "-c", "512", "--port", str(port)]
        server = subprocess.Popen(
            [args.server, "-m", args.model, *given, "--lora-init-without-apply", *floats],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait(port)
            with LM(model, n_ctx=512, draft=0, kv_dtype="f32", adapters=paths) as lm:
                for choice in CHOICES:
                    scales = [
                        {"id": i, "scale": choice.get(name, 0.0)} for i, name in enumerate(paths)
                    ]
                    for prompt in PROMPTS:
                        body = {"prompt": prompt, "n_predict": N_TOKENS, "temperature": 0}
                        theirs = ask(port, {**body, "lora": scales, "n_probs": 1})
                        ours = lm.generate(
                            prompt,
                            max_tokens=N_TOKENS,
                            temperature=0,
                            adapters=choice,
                            logprobs=0,
                        )
                        assert ours.logprobs is not None
                        is_same = theirs["content"] == ours.text
                        n_different += not is_same
                        first = theirs["completion_probabilities"][0]["logprob"]
                        print(
                            f"{choice or 'none'}: {'same' if is_same else 'DIFFERENT'}, first "
                            f"token {ours.logprobs[0].logprob:.4f}, {first:.4f}: {prompt!r}"
                        )
        finally:
            server.kill()
            server.wait()
    return int(n_different > 0)


if __name__ == "__main__":
    sys.exit(main())
