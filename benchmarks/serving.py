"""``mtpcore serve`` beside llama-server: clients that ask at once, plain and with n-gram drafts.

    python benchmarks/serving.py MODEL.gguf [--server PATH] [--clients 1,4,16] [--turns 3] [-n 128]
        [-t 2] [--mtp | --eagle HEAD.gguf] [--template FILE] [--seconds S]

Any file will do. Ours drafts nothing, a fixed number, and as it chooses itself (``auto``). With
``--mtp`` the file has a head, which drafts in both servers in place of n-grams, and with
``--eagle`` an EAGLE-3 head in a file of its own does; ``--template`` is a chat template in Jinja
for files that have none. Of a model that thinks the thoughts count as pieces, too.

In a turn each server is started anew, asked once to warm up, and then by so many clients at once,
each of which has two answers to questions of its own, streamed, greedily. The longest answers then
have the server for themselves. With ``--seconds`` clients ask on and on for so long, so that all of
them are served all the time, and the tokens count that they have by then. Printed are tokens a
second of all clients together, milliseconds until the first piece and between two (median, and the
slowest of a hundred), medians of the turns, and the ratio of tokens a second to those without
drafts in the same turn: of llama-server, or of ours where there is none.

    python benchmarks/serving.py MODEL.gguf --own [--clients 1,4,16] [--turns 3] [-n 128]

What the server itself takes, by Linux's clocks of its threads and without llama-server:
microseconds of CPU time a token of the event loop and of all threads (one of which runs the model),
beside those of ``LM.generate`` with the same prompts at once; medians of the turns.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Literal, NamedTuple

from mtpcore import LM

QUESTIONS = (
    "Write a function in Python that reads a file of numbers and returns their mean.",
    "Rewrite this list in capital letters, one a line: apple, pear, plum, cherry, quince, fig.",
    "Explain to a child why the sky is blue.",
    "Write a short letter to a landlord about a broken heater.",
    "Give three reasons to learn to swim, and three not to.",
    "What is the difference between a virus and a bacterium?",
    "Write JSON with name, age and city of five people.",
    "Tell a story about a fox who is afraid of hens.",
)
THEIRS = "llama-server"
FIXED = "3"
_PATIENCE = 120.0


class Answer(NamedTuple):
    """How many tokens an answer has, when it was asked for, and when each piece of it came."""

    n_tokens: int
    asked: float
    pieces: list[float]

    def tokens_by(self, end: float) -> float:
        """Return the tokens that were there by then, as many for each piece."""
        return self.n_tokens * sum(at <= end for at in self.pieces) / len(self.pieces)


class Measured(NamedTuple):
    """What the clients of one server saw; times are seconds."""

    n_tokens: float
    seconds: float
    first: list[float]
    between: list[float]

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.n_tokens / self.seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--server", metavar="PATH", help="llama-server")
    kind.add_argument("--own", action="store_true", help="CPU time of our server alone")
    parser.add_argument("--clients", default="1,4,16")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("-t", "--threads", type=int, default=2)
    head = parser.add_mutually_exclusive_group()
    head.add_argument("--mtp", action="store_true", help="draft by the model's own head")
    head.add_argument("--eagle", metavar="FILE", help="draft by an EAGLE-3 head in this file")
    parser.add_argument("--template", metavar="FILE", help="a chat template for both")
    parser.add_argument("--seconds", type=float, help="clients ask on and on for so long")
    options = parser.parse_args()
    if options.own:
        measure_own(options)
        return
    drafts, own, other = "ngram-simple", ["--drafter", "lookup"], []
    if options.mtp:
        drafts, own = "draft-mtp", []
    elif options.eagle:
        drafts, own, other = "draft-eagle3", ["-md", options.eagle], ["-md", options.eagle]
    threads, n_ctx = str(options.threads), 1024
    print(
        "| clients | server | tokens/s | beside | first piece, ms | between, ms |\n"
        "| --- | --- | --- | --- | --- | --- |"
    )
    for n in map(int, options.clients.split(",")):
        ours = [sys.executable, "-m", "mtpcore", "serve", options.model, "-np", str(n)]
        ours += ["-t", threads, "-c", str(n_ctx)]
        theirs = [str(options.server), "-m", options.model, "-np", str(n), "-t", threads]
        theirs += ["-c", str(n_ctx * n), "--no-webui"]
        if options.template:
            ours += ["--chat-template-file", options.template]
            theirs += ["--jinja", "--chat-template-file", options.template]
        servers = {
            "mtpcore, --draft 0": [*ours, "--draft", "0"],
            f"mtpcore, --draft {FIXED}": [*ours, *own, "--draft", FIXED],
            "mtpcore": [*ours, *own],
        }
        if options.server:
            servers = {
                THEIRS: theirs,
                f"{THEIRS}, {drafts}": [*theirs, "--spec-type", drafts, *other],
                **servers,
            }
        turns = [
            {
                name: measure(command, n, options.tokens, options.seconds)
                for name, command in servers.items()
            }
            for _ in range(options.turns)
        ]
        for name in servers:
            several = [turn[name] for turn in turns]
            ratio = median(turn[name].speed / turn[next(iter(servers))].speed for turn in turns)
            first, between = (
                " / ".join(f"{1e3 * seconds:.0f}" for seconds in spread(times))
                for times in (
                    [seconds for one in several for seconds in one.first],
                    [seconds for one in several for seconds in one.between],
                )
            )
            speed = median(one.speed for one in several)
            print(f"| {n} | {name} | {speed:.0f} | {ratio:.2f} | {first} | {between} |", flush=True)


def measure_own(options: argparse.Namespace) -> None:
    """Print the CPU time of our server's threads beside that of the LM alone."""
    print("| clients | drafts | event loop, µs a token | all threads | the LM alone |")
    print("| --- | --- | --- | --- | --- |")
    for n in map(int, options.clients.split(",")):
        for draft in ("0", "auto"):
            command = [sys.executable, "-m", "mtpcore", "serve", options.model, "-np", str(n)]
            command += ["-t", "1", "-c", "1024", "--draft", draft]
            if options.template:
                command += ["--chat-template-file", options.template]
            with started(command) as (process, port):
                ask(port, QUESTIONS[0], 16)
                turns = []
                for _ in range(options.turns):
                    before = thread_seconds(process.pid)
                    found = ask_together(port, n, options.tokens)
                    after = thread_seconds(process.pid)
                    spent = {one: after[one] - before.get(one, 0.0) for one in after}
                    n_tokens = sum(answer.n_tokens for answer in found)
                    turns.append((spent[process.pid] / n_tokens, sum(spent.values()) / n_tokens))
            alone = measure_alone(options, n, int(draft) if draft.isdigit() else "auto")
            shown = " | ".join(
                f"{1e6 * median(several):.0f} ({1e6 * min(several):.0f}-{1e6 * max(several):.0f})"
                for several in (*zip(*turns, strict=True), alone)
            )
            print(f"| {n} | {draft} | {shown} |", flush=True)


def measure_alone(options: argparse.Namespace, n: int, draft: int | Literal["auto"]) -> list[float]:
    """Return the CPU seconds that an LM takes for a token, in each turn."""
    prompts: list[str | Sequence[int]] = list(questions(n))
    with LM(options.model, n_ctx=1024, n_seq_max=n, threads=1, draft=draft) as lm:
        turns = []
        for _ in range(options.turns + 1):  # the first one warms up
            begin = time.process_time()
            texts = lm.generate(prompts, max_tokens=options.tokens, temperature=0)
            turns.append((time.process_time() - begin) / sum(len(one.tokens) for one in texts))
    return turns[1:]


def thread_seconds(pid: int) -> dict[int, float]:
    """Return the CPU seconds that each thread of a process had; the first has its id."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {int(one.name): int((one / "schedstat").read_text().split()[0]) / 1e9 for one in tasks}


def spread(seconds: list[float]) -> tuple[float, float]:
    """Return the median, and what one of a hundred exceeds."""
    return median(seconds), quantiles(seconds, n=100)[98]


def measure(command: list[str], n_clients: int, n_tokens: int, seconds: float | None) -> Measured:
    """Start a server, and let clients ask it."""
    with started(command) as (_, port):
        ask(port, QUESTIONS[0], 16)
        begin = time.perf_counter()
        end = begin + seconds if seconds else None
        found = ask_together(port, n_clients, n_tokens, end)
        end = end or time.perf_counter()
    return Measured(
        sum(answer.tokens_by(end) for answer in found),
        end - begin,
        [answer.pieces[0] - answer.asked for answer in found],
        [later - before for answer in found for before, later in pairwise(answer.pieces)],
    )


@contextmanager
def started(command: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a server at a port that is free, and end it."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(port, process)
        yield process, port
    finally:
        process.terminate()
        process.wait()


def questions(n_clients: int) -> list[str]:
    """Return two questions for each client."""
    return [question(i) for i in range(2 * n_clients)]


def question(i: int) -> str:
    """Return one that nobody else asks."""
    return f"{QUESTIONS[i % len(QUESTIONS)]} ({i})"


def ask_together(
    port: int, n_clients: int, n_tokens: int, end: float | None = None
) -> list[Answer]:
    """Let clients ask at once: two questions for each of them, or as many as they can by then."""

    def ask_on(client: int) -> list[Answer]:
        """Ask one question after the other."""
        found: list[Answer] = []
        while time.perf_counter() < (end or 0.0):
            found.append(ask(port, question(client + len(found) * n_clients), n_tokens))
        return found

    with ThreadPoolExecutor(n_clients) as pool:
        if end is not None:
            return [answer for found in pool.map(ask_on, range(n_clients)) for answer in found]
        return list(pool.map(lambda one: ask(port, one, n_tokens), questions(n_clients)))


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server answers."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end and process.poll() is None:
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"no server: {process.args!r}")


def ask(port: int, question: str, n_tokens: int) -> Answer:
    """Ask a question, and wait for the answer."""
    body = {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": n_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    asked, pieces, n = time.perf_counter(), list[float](), 0
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=600)) as connection:
        connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps(body),
            {"content-type": "application/json", "host": f"localhost:{port}"},
        )
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                n = event["usage"]["completion_tokens"]
            delta = event["choices"][0]["delta"] if event["choices"] else {}
            if delta.get("content") or delta.get("reasoning_content"):
                pieces.append(time.perf_counter())
    if not pieces:
        raise SystemExit(f"an answer without a text: {question!r}")
    return Answer(n, asked, pieces)


if __name__ == "__main__":
    main()
