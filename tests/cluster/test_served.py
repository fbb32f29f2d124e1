"""A cluster of two replicas on this machine, asked over HTTP."""

import asyncio
import json
import re
import socket
import time
from pathlib import Path

import httpx2
import pytest
from harness.extras import require
from harness.served import wait_until

import mtpcore
from mtpcore.cluster import application

require("ray", extra="ray")
pytestmark = pytest.mark.filterwarnings("default")  # Ray's own are not ours to mend
PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
SETTINGS = {
    "model": "demo",
    "replicas": "2",
    "n_ctx": "240",
    "name": "demo",
    "keep_alive": "0.5",
    "max_body": "50000",
}


def port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def address(ray):
    """Where the cluster is served."""
    from ray import serve

    at = port()
    serve.start(http_options={"host": "127.0.0.1", "port": at})
    serve.run(application(SETTINGS))
    yield f"http://127.0.0.1:{at}"
    serve.shutdown()


@pytest.fixture(scope="module")
def alone():
    """The same LM by itself."""
    with mtpcore.LM("demo", n_ctx=240, threads=1) as lm:
        yield lm


@pytest.fixture
def http(address):
    """A client without an API of its own."""
    with httpx2.Client(base_url=address, timeout=60) as made:
        yield made


def body_of(i, **more):
    return {"prompt": f"x{i} = ", "max_tokens": 20, "seed": i, "ignore_eos": True, **more}


def slots_of(http):
    return http.get("/slots").json()


def test_answers_are_those_of_one_lm(address, alone):
    import openai

    with openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as client:
        for i in range(4):
            options = {"max_tokens": 20, "seed": i, "extra_body": {"ignore_eos": True}}
            expected = alone.generate(f"x{i} = ", max_tokens=20, seed=i, ignore_eos=True).text
            whole = client.completions.create(model="demo", prompt=f"x{i} = ", **options)
            assert whole.choices[0].text == expected
            pieces = client.completions.create(
                model="demo", prompt=f"x{i} = ", stream=True, **options
            )
            assert "".join(one.choices[0].text for one in pieces if one.choices) == expected
        assert client.models.list().data[0].id == "demo"
        with pytest.raises(openai.BadRequestError, match="tokens"):
            client.completions.create(model="demo", prompt="x" * 2000)


def test_conversations_stay_with_the_replica_that_holds_them(http):
    prompts = [(f"def f{i}(path):\n    return " * 25)[:600] for i in range(4)]

    def ask(prompt):
        return http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4}).json()

    first = [ask(prompt)["usage"] for prompt in prompts]
    for before, prompt in zip(first, prompts, strict=True):
        usage = ask(prompt + " x")["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= before["prompt_tokens"] - 2
    shown = http.get("/metrics").text
    lines = [one for one in shown.splitlines() if one.startswith("llamacpp:prompt_tokens_cached_t")]
    assert len(lines) == 2
    assert all('replica="' in one for one in lines)
    assert len({one["replica"] for one in slots_of(http)}) == 2
    contexts = http.get("/cross").json()["contexts"]
    assert (contexts["llm"]["n_seq_max"], contexts["llm"]["n_ctx"]) == (8, 240)


def test_what_a_cluster_refuses_has_the_form_of_the_api(http):
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/v1/nothing").json()["error"]["code"] == "not_found"
    saved = http.post("/slots/0?action=save", json={"filename": "x"})
    assert (saved.status_code, saved.json()["error"]["type"]) == (501, "not_supported_error")
    assert http.get("/lora-adapters").json() == []
    assert http.post("/lora-adapters", json=[]).status_code == 501
    for path in ("/v1/completions", "/v1/messages", "/api/chat"):
        assert http.post(path, content=b"{").status_code == 400
        large = http.post(path, content=b" " * 60_000)
        assert large.status_code == 413
        assert "50000" in json.dumps(large.json())
    assert isinstance(http.post("/api/chat", content=b"{").json()["error"], str)
    assert http.post("/v1/messages", content=b"{").json()["type"] == "error"


def test_a_client_that_goes_frees_its_sequence(http):
    def n_ended():
        lines = http.get("/metrics").text.splitlines()
        ended = [line for line in lines if line.startswith("vllm:request_success_total{")]
        return sum(float(line.split()[-1]) for line in ended)

    before = n_ended()
    long = body_of(0, max_tokens=230, stream=True, speculative=False)
    with http.stream("POST", "/v1/completions", json=long) as found:
        for line in found.iter_lines():
            if line.startswith("data"):
                break
    wait_until(lambda: not any(one["is_processing"] for one in slots_of(http)))
    assert n_ended() == before  # it was not written to its end


def test_every_request_is_answered_when_a_replica_dies(ray, address, alone, http):
    n, n_events = 12, [0] * 12
    expected = [
        alone.generate(f"x{i} = ", max_tokens=200, seed=i, ignore_eos=True).text for i in range(n)
    ]

    async def ask(client, i):
        body = body_of(i, max_tokens=200, stream=i % 4 != 3)
        if not body["stream"]:
            found = await client.post("/v1/completions", json=body)
            return found.json()["choices"][0]["text"]
        text = ""
        async with client.stream("POST", "/v1/completions", json=body) as found:
            async for line in found.aiter_lines():
                if line.startswith("data: {"):
                    choices = json.loads(line[6:])["choices"]
                    text += "".join(one["text"] for one in choices)
                    n_events[i] += 1
        assert line == "" or line == "data: [DONE]"
        return text

    async def ask_all():
        async with httpx2.AsyncClient(base_url=address, timeout=120) as client:
            asked = [asyncio.ensure_future(ask(client, i)) for i in range(n)]
            while sum(count > 5 for count in n_events) < 5:  # more than one replica has at once
                await asyncio.sleep(0.001)
            names = [
                one["name"]
                for one in ray.util.list_named_actors(all_namespaces=True)
                if "#Replica#" in one["name"]
            ]
            ray.kill(ray.get_actor(names[0], namespace="serve"))
            assert any(5 < count < 200 for count in n_events)
            return await asyncio.gather(*asked)

    assert asyncio.run(ask_all()) == expected


@pytest.mark.many_processes
def test_another_replica_takes_the_place_of_one_that_died(http):
    """The one that died is that of the test before."""
    end = time.monotonic() + 60
    while len({one["replica"] for one in slots_of(http)}) < 2 and time.monotonic() < end:
        time.sleep(0.2)
    assert len({one["replica"] for one in slots_of(http)}) == 2


@pytest.mark.many_processes
def test_the_page_s_code_runs(ray, address, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text("utf-8")
    blocks = re.findall(r"^```\{code-block\} python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    from ray import serve

    page = {}
    exec(blocks[0], page)
    status = serve.status().applications["default"].deployments
    assert status["Replica"].replica_states == {"RUNNING": 2}
    serve.delete("default")  # its CPUs are the job's
    for block in blocks[1:]:
        exec(block, page)
