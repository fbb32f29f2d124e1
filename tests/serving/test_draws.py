"""A request that two servers answer with the same draws: the same stream, to the byte."""

import asyncio
import json
import re

import pytest

from mtpcore.serving import build_app
from mtpcore.serving.draws import RequestDraws, fix_draws

TALK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "temperature": 1}
PATHS = {
    "/v1/chat/completions": TALK | {"logprobs": True, "ignore_eos": True},
    "/v1/completions": {"prompt": "x", "max_tokens": 12, "temperature": 1},
    "/v1/responses": {"input": "hi", "max_output_tokens": 12, "temperature": 1},
    "/v1/messages": TALK,
    "/completion": {"prompt": "x", "n_predict": 12, "temperature": 1, "seed": -1},
    "/api/chat": {"messages": TALK["messages"], "options": {"num_predict": 12, "temperature": 1}},
}
TIMES = re.compile(
    rb'"(timings|metrics)":\{.*|"\w+_at":("[^"]*"|\d+)|_duration.*|"(id_slot|seed)":-?\d+'
)
"""What no draw decides: figures at the end, the time of a line of Ollama's, a text's slot."""


def ask(app, path, body, draws):
    """Return the body of an answer to a request that draws this."""
    raw = json.dumps(body | {"stream": True, "speculative": False}).encode()
    bodies = [{"type": "http.request", "body": raw, "more_body": False}]
    scope = {
        **{"type": "http", "method": "POST", "path": path, "raw_path": path.encode()},
        **{"query_string": b"", "headers": [], "root_path": "", "scheme": "http"},
        **{"http_version": "1.1", "client": None, "server": None},
    }
    sent = []

    async def receive():
        if bodies:
            return bodies.pop()
        return await asyncio.get_running_loop().create_future()

    async def send(message):
        sent.append(message.get("body", b""))

    async def work():
        fix_draws(draws)
        await app(scope, receive, send)

    asyncio.run(work())
    return b"".join(sent)


@pytest.mark.parametrize("path", PATHS)
def test_the_same_draws_give_the_same_stream(lm, path):
    app, draws = build_app(lm), RequestDraws.make()
    first, again, other = (
        TIMES.sub(b"", ask(app, path, PATHS[path], one))
        for one in (draws, draws, RequestDraws.make())
    )
    assert first == again != other
    assert first.count(b"\n") > 8
    assert b'"error":{' not in first


def test_a_seed_of_the_request_or_the_server_stands(lm):
    app = build_app(lm)
    body = PATHS["/completion"] | {"seed": 3}

    def text(app, body):
        raw = ask(app, "/completion", body, RequestDraws.make())
        lines = [json.loads(one[6:]) for one in raw.split(b"\n") if one.startswith(b"data: {")]
        return "".join(one["content"] for one in lines)

    assert text(app, body) == text(app, body)
    sampling, own = dict(lm._sampling), lm._sampling
    lm._sampling = sampling | {"seed": 3}
    try:
        assert text(app, PATHS["/completion"]) == text(app, body)
    finally:
        lm._sampling = own
