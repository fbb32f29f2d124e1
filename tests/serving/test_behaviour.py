"""Clients that leave, ask too much, or have no key; servers that end."""

import asyncio
import threading
import time

import httpx2
import pytest
from harness.served import serving, wait_until

import mtpcore
from mtpcore.serving import ServerSettings

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
    step = slow.generator.step

    def very_slowly():
        time.sleep(0.3)
        return step()

    slow.generator.step = very_slowly
    with (
        serving(slow) as url,
        httpx2.stream("POST", f"{url}/v1/completions", json=LONG | {"stream": True}) as r,
    ):
        lines = r.iter_lines()
        next(lines)
        begin = time.monotonic()
        for _ in range(3):
            assert httpx2.get(f"{url}/health").json() == {"status": "ok"}
        assert time.monotonic() - begin < 0.9


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
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    before = count("llamacpp:tokens_predicted_total")
    http.post("/v1/completions", json={"prompt": "x", "max_tokens": 7, "ignore_eos": True})
    assert count("llamacpp:tokens_predicted_total") == before + 7
    assert count("vllm:time_to_first_token_seconds_count") > 0
    wait_until(lambda: count("llamacpp:requests_processing") == 0)


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
