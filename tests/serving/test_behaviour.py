"""Clients that leave, ask too much, or have no key; servers that end."""

import asyncio
import json
import socket
import threading
import time

import httpx2
import pytest
from harness.served import serving, serving_app, wait_until
from starlette.applications import Starlette
from starlette.routing import Mount

import mtpcore
from mtpcore.serving import ServerSettings, build_app

LONG = {"prompt": "x", "max_tokens": 150, "ignore_eos": True, "speculative": False}


@pytest.fixture
def slow(model):
    """An LM of one sequence whose rounds take a while."""
    with mtpcore.LM(model, n_ctx=200, n_seq_max=1, threads=1, draft=0) as lm:
        step = lm.generator.step

        def slowly():
            time.sleep(0.02)
            return step()

        lm.generator.step = slowly
        yield lm


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_frees_its_sequence(slow, stream):
    with serving(slow) as url:
        if stream:
            with httpx2.stream("POST", f"{url}/v1/completions", json=LONG | {"stream": True}) as r:
                lines = r.iter_lines()
                next(lines)
                wait_until(lambda: slow.n_running == 1)
        else:
            with pytest.raises(httpx2.TimeoutException):
                httpx2.post(f"{url}/v1/completions", json=LONG, timeout=0.5)
        wait_until(lambda: slow.n_running == 0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_closes_its_half_of_the_connection_is_gone(slow, stream):
    """Its socket could still read; uvicorn closes the other half, too."""
    body = json.dumps(LONG | {"stream": stream}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with (
        serving(slow) as url,
        socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=20) as client,
    ):
        client.sendall(head.encode() + body)
        wait_until(lambda: slow.n_running == 1)
        client.shutdown(socket.SHUT_WR)
        found = b"".join(iter(lambda: client.recv(4096), b""))  # to the end
        assert b'"finish_reason":"length"' not in found
        wait_until(lambda: slow.n_running == 0)


def test_a_client_that_goes_while_it_waits_frees_its_place(slow):
    with serving(slow, ServerSettings(max_waiting=1)) as url:
        first = threading.Thread(
            target=lambda: httpx2.post(f"{url}/v1/completions", json=LONG, timeout=60)
        )
        first.start()
        wait_until(lambda: slow.n_running == 1)
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(f"{url}/v1/completions", json=LONG, timeout=0.2)
        wait_until(lambda: slow.n_running == 1)
        first.join()


def test_a_full_queue_says_when_to_come_again(slow):
    with serving(slow, ServerSettings(max_waiting=0)) as url:
        with httpx2.stream("POST", f"{url}/v1/completions", json=LONG | {"stream": True}) as r:
            lines = r.iter_lines()  # kept: its end would close the connection
            next(lines)
            found = httpx2.post(f"{url}/v1/completions", json=LONG)
            assert found.status_code == 429
            assert int(found.headers["retry-after"]) >= 1
            assert found.json()["error"]["code"] == "queue_full"
        wait_until(lambda: slow.n_running == 0)


def test_a_request_that_takes_too_long_ends(slow):
    with serving(slow, ServerSettings(seconds=0.3)) as url:
        found = httpx2.post(f"{url}/v1/completions", json=LONG, timeout=30)
        assert found.status_code == 504
        with httpx2.stream("POST", f"{url}/v1/completions", json=LONG | {"stream": True}) as r:
            assert '"timeout_error"' in list(filter(None, r.iter_lines()))[-1]
        wait_until(lambda: slow.n_running == 0)


def test_a_stream_says_that_it_is_still_there(slow):
    with (
        serving(slow, ServerSettings(keep_alive=0.01)) as url,
        httpx2.stream(
            "POST", f"{url}/v1/completions", json=LONG | {"stream": True, "max_tokens": 5}
        ) as found,
    ):
        lines = [line for line in found.iter_lines() if line]
    assert sum(line == ":" for line in lines) > 2
    assert lines[-1] == "data: [DONE]"


def test_the_loop_is_free_while_a_round_runs(slow):
    step, runs, may_end = slow.generator.step, threading.Event(), threading.Event()

    def wait_and_step():
        runs.set()
        may_end.wait()
        return step()

    slow.generator.step = wait_and_step
    with (
        serving(slow) as url,
        httpx2.stream("POST", f"{url}/v1/completions", json=LONG | {"stream": True}) as r,
    ):
        lines = r.iter_lines()
        next(lines)
        try:
            assert runs.wait(20)
            for _ in range(3):
                found = httpx2.get(f"{url}/health", timeout=20)
                assert found.json() == {"status": "ok"}
        finally:
            may_end.set()


def test_bodies_have_a_limit_and_must_be_json(http):
    for body, status in ((b"{" + b" " * 200_000, 413), (b"{", 400), (b"[]", 400), (b"\xff", 400)):
        found = http.post("/v1/completions", content=body)
        assert found.status_code == status
        assert found.json()["error"]["message"]
    deep = b'{"a":' * 50_000 + b"1" + b"}" * 5
    assert http.post("/v1/completions", content=deep[:90_000]).status_code == 400


def test_paths_that_there_are_not(http):
    assert http.get("/v1/nothing").json()["error"]["code"] == "not_found"
    assert http.get("/v1/completions").status_code == 405


def test_a_key_opens_the_server(lm):
    with serving(lm, ServerSettings(api_keys=("secret", "other"))) as url:
        assert httpx2.get(f"{url}/health").status_code == 200
        assert httpx2.get(f"{url}/v1/models").status_code == 401
        for headers in (
            {"authorization": "Bearer other"},
            {"x-api-key": "secret"},
        ):
            assert httpx2.get(f"{url}/v1/models", headers=headers).status_code == 200
        wrong = httpx2.get(f"{url}/v1/models", headers={"authorization": "Bearer x"})
        assert wrong.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("at", ["/", "/ai/"])
def test_a_mounted_server_asks_for_keys_and_answers_as_one_that_is_not(lm, at):
    app = build_app(lm, ServerSettings(api_keys=("secret",)))
    with (
        serving_app(Starlette(routes=[Mount(at, app)])) as url,
        httpx2.Client(base_url=url + at) as http,
    ):
        assert http.get("health").status_code == 200
        page = http.get("", headers={"accept": "text/html"})
        assert (page.status_code, http.get("page.js").status_code) == (200, 200)
        errors = {path: http.post(path) for path in ("v1/messages", "api/chat", "completion")}
        http.headers["x-api-key"] = "secret"
        errors |= {f"{path}?": http.post(path) for path in errors}
        assert http.get("v1/models").status_code == 200
    found = [(error.status_code, error.json()) for error in errors.values()]
    assert [status for status, _ in found] == [401] * 3 + [400] * 3
    for _, shape in found[::3]:
        assert shape["type"] == "error"
    for _, shape in found[1::3]:
        assert isinstance(shape["error"], str)
    for _, shape in found[2::3]:
        assert "type" in shape["error"]


def test_other_names_and_other_pages_are_refused(lm):
    settings = ServerSettings(hosts=("127.0.0.1", "localhost"), origins=("https://page.example",))
    with serving(lm, settings) as url:

        def status(**headers):
            return httpx2.get(f"{url}/v1/models", headers=headers).status_code

        assert status() == 200
        assert status(host="evil.example") == 403
        assert status(origin="https://evil.example") == 403
        assert status(origin="http://localhost:3000") == 200
        allowed = httpx2.get(f"{url}/v1/models", headers={"origin": "https://page.example"})
        assert allowed.headers["access-control-allow-origin"] == "https://page.example"


def test_metrics_say_when_the_server_began(http):
    began = int(http.get("/metrics").headers["process-start-time-unix"])
    assert began == http.get("/v1/models").json()["data"][0]["created"]


def test_metrics_count_what_was_done(lm, http):
    def count(name):
        lines = http.get("/metrics").text.splitlines()
        assert any(line.startswith(f"# TYPE {name} ") for line in lines) or name.endswith("_count")
        found = [line for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.split()[-1]) for line in found)

    names = [
        *("llamacpp:tokens_predicted_total", "llamacpp:prompt_tokens_total"),
        *("llamacpp:prompt_tokens_cached_total", "llamacpp:prompt_seconds_total"),
        *("llamacpp:tokens_predicted_seconds_total", "llamacpp:n_decode_total"),
        *("vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
        *("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
        "vllm:time_to_first_token_seconds_count",
    ]
    for program in ("llamacpp", "vllm"):
        begin = f"{program}:spec_decode_num"
        names += [f"{begin}_drafts_total", f"{begin}_draft_tokens_total"]
        names += [f"{begin}_accepted_tokens_total", f"{begin}_accepted_tokens_per_pos_total"]
    before = {name: count(name) for name in names}
    body = {"prompt": [5] * 40, "max_tokens": 20, "ignore_eos": True, "speculative": {"draft": 3}}
    found = [http.post("/v1/completions", json=body).json() for _ in range(2)]
    more = {name: count(name) - before[name] for name in names}
    usages = [one["usage"] for one in found]
    n_cached = sum(one["prompt_tokens_details"]["cached_tokens"] for one in usages)
    drafts = [one["metrics"]["speculative_decoding"] for one in found]
    n_accepted = sum(one["num_accepted_draft_tokens"] for one in drafts)
    assert n_cached > 0 < n_accepted
    assert more["llamacpp:tokens_predicted_total"] == more["vllm:generation_tokens_total"] == 40
    assert more["vllm:prompt_tokens_total"] == more["vllm:prefix_cache_queries_total"] == 80
    assert more["llamacpp:prompt_tokens_total"] == 80 - n_cached
    assert more["llamacpp:prompt_tokens_cached_total"] == n_cached
    assert more["vllm:prefix_cache_hits_total"] == n_cached
    assert more["llamacpp:n_decode_total"] == sum(one["num_spec_steps"] for one in drafts)
    for program in ("llamacpp", "vllm"):
        begin = f"{program}:spec_decode_num"
        n_drafted = sum(one["num_draft_tokens"] for one in drafts)
        assert more[f"{begin}_draft_tokens_total"] == n_drafted
        assert more[f"{begin}_accepted_tokens_total"] == n_accepted
        assert more[f"{begin}_accepted_tokens_per_pos_total"] == n_accepted
        assert 0 < more[f"{begin}_drafts_total"] <= more["llamacpp:n_decode_total"]
    for name in ("prompt_seconds_total", "tokens_predicted_seconds_total"):
        assert more[f"llamacpp:{name}"] > 0
    for name in ("prompt_tokens_seconds", "predicted_tokens_seconds"):
        assert count(f"llamacpp:{name}") > 0
    assert 1 <= count("llamacpp:n_busy_slots_per_decode") <= 4
    assert count("llamacpp:n_tokens_max") >= 60
    assert more["vllm:time_to_first_token_seconds_count"] == 2
    for name in ("llamacpp:requests_processing", "vllm:num_requests_running"):
        wait_until(lambda name=name: count(name) == 0)


def test_what_is_asked_of_the_model_waits_for_one_round_at_most(lm):
    """Otherwise every text that is read has a round of its own in the queue before it."""
    engine, waiting, most = lm._engine, [0], [0]
    run = engine.run

    async def counted(function):
        waiting[0] += 1
        most[0] = max(most[0], waiting[0])
        try:
            return await run(function)
        finally:
            waiting[0] -= 1

    async def read(stream):
        return [piece async for piece in stream]

    async def read_all():
        options = {"max_tokens": 20, "ignore_eos": True, "draft": 0, "temperature": 0}
        streams = [lm.astream([5, 6, 7], **options) for _ in range(4)]
        for stream in streams:
            await stream.begin()
        engine.run = counted
        await asyncio.gather(*map(read, streams))

    try:
        asyncio.run(read_all())
    finally:
        del engine.run
    assert most[0] == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_text_that_cannot_be_written_on_is_the_server_s_fault(slow, stream):
    step, n = slow.generator.step, [0]

    def fail_later():
        n[0] += 1
        if n[0] > 3:
            raise mtpcore.LinkError("a row is missing")
        return step()

    slow.generator.step = fail_later
    with serving(slow) as url:
        found = httpx2.post(f"{url}/v1/completions", json=LONG | {"stream": stream})
        if stream:
            assert '"server_error"' in found.text.strip().splitlines()[-1]
        else:
            assert found.status_code == 500
            assert found.json()["error"]["type"] == "server_error"
        assert "a row is missing" in found.text
        wait_until(lambda: slow.n_running == 0)


def test_a_model_without_a_chat_template_says_what_to_ask_instead():
    with mtpcore.LM("demo", n_ctx=50, threads=1) as lm, serving(lm) as url:
        body = {"messages": [{"role": "user", "content": "hi"}]}
        found = httpx2.post(f"{url}/v1/chat/completions", json=body)
    assert found.status_code == 400
    assert "/v1/completions" in found.json()["error"]["message"]
