"""Memory of ``mtpcore serve`` over many requests of all kinds.

    python benchmarks/serving_memory.py [MODEL] [-n 10000] [--clients 4] [-t 1]

The server is a process of its own, of the demo if no model is named. Requests differ: chats and
texts, streamed and not, drafted and not, with tools, a schema of their own, log-probabilities or
several texts; embeddings; clients that leave in mid-stream; bodies that are no JSON. Printed is the
memory that the process holds after each tenth of them; the first tenth is warm-up, and what is
added later should be next to nothing.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from serving import wait_for

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    '{% if tools %}<tool_call>{"name": "x", "arguments": {}}</tool_call>{% endif %}<assistant>'
)
N_PARTS = 10
KINDS = (
    "chat",
    "streamed-logprobs",
    "tools",
    "schema",
    "two-texts",
    "left",
    "messages",
    "responses",
    "embeddings",
    "ollama",
    "no-json",
    "stop",
)
"""What requests are, in their order."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("-n", "--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("-t", "--threads", type=int, default=1)
    options = parser.parse_args()
    print("| requests | memory, MB |\n| --- | --- |")
    found = []
    for n, size, kinds in measure(
        options.model, options.requests, options.clients, options.threads
    ):
        print(f"| {n} | {size / 1e6:.1f} |", flush=True)
        found.append((size, kinds))
    (first, _), (last, kinds) = found[0], found[-1]
    print(f"\n{(last - first) / 1e6:+.1f} MB after the first tenth; answers: {kinds}")


def measure(
    model: str, n_requests: int, n_clients: int, n_threads: int
) -> Iterator[tuple[int, int, dict[str, int]]]:
    """Yield, after each tenth, how many requests there were, bytes held, and kinds of answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mtpcore", "serve", model, "--port", str(port), "-c", "256"]
    command += ["-t", str(n_threads), "--chat-template", TEMPLATE, "--max-waiting", "1000"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    found: Counter[str] = Counter()
    try:
        wait_for(port, process)
        with ThreadPoolExecutor(n_clients) as pool:
            for part in range(N_PARTS):
                begin, end = (n_requests * i // N_PARTS for i in (part, part + 1))
                found.update(pool.map(lambda i: ask(port, i), range(begin, end)))
                yield end, memory_of(process.pid), dict(sorted(found.items()))
    finally:
        process.terminate()
        process.wait()


def memory_of(pid: int) -> int:
    """Return the bytes that a process holds and shares with no file."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return 1024 * int(found[1])


def request_of(i: int) -> tuple[str, dict[str, Any] | None]:
    """Return route and body of request ``i``; None: no JSON."""
    messages = [{"role": "user", "content": f"question {i}"}]
    chat, text = {"messages": messages, "max_tokens": 12}, {"prompt": f"x{i} = ", "max_tokens": 12}
    parameters = {"type": "object", "properties": {f"p{i}": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": f"f{i}", "parameters": parameters}}
    kinds: list[tuple[str, dict[str, Any] | None]] = [
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", chat | {"stream": True, "logprobs": True, "top_logprobs": 3}),
        ("/v1/chat/completions", chat | {"tools": [tool]}),
        ("/v1/completions", text | {"json_schema": parameters}),
        ("/v1/completions", text | {"n": 2, "seed": i, "speculative": {"draft": 4}}),
        ("/v1/completions", text | {"stream": True, "max_tokens": 100, "ignore_eos": True}),
        ("/v1/messages", chat | {"stream": True}),
        ("/v1/responses", {"input": f"question {i}", "max_output_tokens": 12, "stream": True}),
        ("/v1/embeddings", {"input": [f"text {i}", f"another {i}"]}),
        ("/api/chat", {"model": "demo", "messages": messages, "options": {"num_predict": 12}}),
        ("/v1/completions", None),
        ("/v1/completions", text | {"stop": [f"{i % 10}"], "speculative": False}),
    ]
    return dict(zip(KINDS, kinds, strict=True))[KINDS[i % len(KINDS)]]


def ask(port: int, i: int) -> str:
    """Send a request; return the status of its answer, or that the client left."""
    path, body = request_of(i)
    raw = b'{"prompt": ' if body is None else json.dumps(body).encode()
    leaves = body is not None and body.get("max_tokens") == 100
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        headers = {"content-type": "application/json", "host": f"localhost:{port}"}
        connection.request("POST", path, raw, headers)
        answer = connection.getresponse()
        if leaves:
            answer.readline()
            return "left"
        answer.read()
        return str(answer.status)


if __name__ == "__main__":
    main()
