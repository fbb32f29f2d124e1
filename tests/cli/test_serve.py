"""``mtpcore serve`` as a process: it answers, and ends when it is asked to."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import httpx2
import pytest

from mtpcore.cli import main

COMMAND = [sys.executable, "-m", "mtpcore", "serve", "demo", "-t", "1"]


@pytest.fixture
def served():
    """Start the server; give the process and its address."""
    with started() as found:
        yield found


@contextmanager
def started(*options, port="0"):
    command = [*COMMAND, "--port", port, *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if found := re.search(r"http://\S+:\d+", line):
                break
        else:
            pytest.fail("it does not listen")
        yield process, found[0]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def ask(address, **fields):
    body = json.dumps({"prompt": "def f(", "ignore_eos": True} | fields).encode()
    return urllib.request.urlopen(f"{address}/v1/completions", body, timeout=60)


def test_it_answers_and_draws_a_seed_for_each_text(served):
    _, address = served
    texts = set()
    for _ in range(3):
        with ask(address, max_tokens=20, temperature=2) as answer:
            texts.add(json.load(answer)["choices"][0]["text"])
    assert len(texts) > 1


def test_an_answer_that_has_begun_ends_before_the_server_does(served):
    process, address = served
    with ask(address, max_tokens=400, stream=True) as answer:
        answer.readline()
        process.send_signal(signal.SIGTERM)
        lines = answer.read().decode().strip().splitlines()
    assert lines[-1] == "data: [DONE]"
    assert process.wait(30) in (0, -signal.SIGTERM)


def test_one_that_was_killed_hinders_no_other(tmp_path):
    """In the middle of a text, with the state of another one in a file."""
    options = ("--slot-save-path", str(tmp_path))
    body = {"prompt": "def f(", "ignore_eos": True, "n_predict": 30, "seed": 3}
    with started(*options) as (process, address), ask(address, max_tokens=400, stream=True) as one:
        one.readline()
        first = httpx2.post(f"{address}/completion", json=body, timeout=60).json()
        slot, name = first["id_slot"], {"filename": "one.bin"}
        saved = httpx2.post(f"{address}/slots/{slot}?action=save", json=name, timeout=60)
        assert saved.status_code == 200
        process.kill()
        process.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["one.bin"]
    port = address.rsplit(":", 1)[1]
    with started(*options, port=port) as (_, again):
        assert again == address
        restored = httpx2.post(f"{address}/slots/0?action=restore", json=name, timeout=60)
        assert restored.json()["n_restored"] == saved.json()["n_saved"]
        second = httpx2.post(f"{address}/completion", json=body, timeout=60).json()
        assert second["content"] == first["content"]
        assert second["timings"]["cache_n"] == first["tokens_evaluated"] - 1


def test_a_slot_folder_that_is_not_there_is_an_error(tmp_path, capsys):
    assert main(["serve", "demo", "--slot-save-path", str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_a_port_that_is_taken_is_an_error(served, capsys):
    _, address = served
    port = address.rsplit(":", 1)[1]
    assert main(["serve", "demo", "--port", port, "-t", "1"]) == 1
    assert "Address already in use" in capsys.readouterr().err


def ask_app(monkeypatch, options, method, path, **request):
    """What the application that the command serves answers."""
    found = []

    async def ask(app):
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **request)

    def run(self, sockets):
        found.append(asyncio.run(ask(self.config.app)))

    monkeypatch.setattr("uvicorn.Server.run", run)
    assert main(["serve", "demo", "--port", "0", "-t", "1", *options]) == 0
    return found[0]


def test_a_template_and_its_variables(monkeypatch):
    options = ["--chat-template", "{{ messages[0].content }} {{ enable_thinking }} {{ mood }}"]
    options += ["--reasoning", "off", "--chat-template-kwargs", '{"mood": "glad"}']
    asked = {"messages": [{"role": "user", "content": "hi"}]}
    found = ask_app(monkeypatch, options, "POST", "/apply-template", json=asked)
    assert found.json() == {"prompt": "hi False glad"}


@pytest.mark.parametrize("options", [[], ["--no-page"]])
def test_the_page_can_be_left_out(monkeypatch, options):
    found = ask_app(monkeypatch, options, "GET", "/", headers={"accept": "text/html"})
    assert found.headers["content-type"].startswith("text/plain" if options else "text/html")


@pytest.mark.parametrize(
    ("options", "asked", "status"),
    [
        ([], {"n": 16}, 200),
        ([], {"n": 17}, 400),
        (["--max-choices", "17"], {"n": 17}, 200),
        (["--max-body", "1"], {"user": "x" * (1 << 20)}, 413),
        (["--max-body", "2"], {"user": "x" * (1 << 20)}, 200),
    ],
)
def test_requests_have_limits(monkeypatch, options, asked, status):
    asked |= {"prompt": "def f(", "max_tokens": 0}
    found = ask_app(monkeypatch, options, "POST", "/v1/completions", json=asked)
    assert found.status_code == status, found.text


def test_without_the_extra_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("mtpcore.cli.serve.find_spec", lambda name: None)
    assert main(["serve", "demo"]) == 1
    assert "pip install 'mtpcore[serve]'" in capsys.readouterr().err
