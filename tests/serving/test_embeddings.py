"""Embeddings through the clients of three APIs, and as llama.cpp's server has them."""

import base64
import json
import socket
import time

import httpx2
import numpy as np
import ollama
import pytest
from harness.served import serving

import mtpcore
from mtpcore.serving import ServerSettings

TEXTS = ["def read(", "import os"]


def test_the_official_client_gets_the_vectors_of_the_lm(client, lm):
    """It asks for base64 where nobody says how."""
    found = client.embeddings.create(model="demo", input=TEXTS)
    for one, own in zip(found.data, lm.embed(TEXTS), strict=True):
        assert np.float32(one.embedding).tobytes() == own.tobytes()
    assert [one.index for one in found.data] == [0, 1]
    n_tokens = sum(len(lm.tokenizer.encode(text)) for text in TEXTS)
    assert found.usage.prompt_tokens == found.usage.total_tokens == n_tokens


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ("def read(", ["def read("]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
        (["import os", [7]], ["import os", [7]]),
        ({"prompt_string": "import os"}, ["import os"]),
        (
            [{"content": [{"type": "text", "text": "import "}, {"type": "text", "text": "os"}]}],
            ["import os"],
        ),
    ],
)
@pytest.mark.parametrize(("pooling", "tap"), [("mean", "residual"), ("last", "hidden")])
def test_forms_of_input(http, lm, given, same, pooling, tap):
    body = {"input": given, "pooling": pooling, "tap": tap}
    data = http.post("/v1/embeddings", json=body).json()["data"]
    own = lm.embed(same, pooling=pooling, tap=tap)
    assert [np.float32(one["embedding"]).tobytes() for one in data] == [v.tobytes() for v in own]
    packed = http.post("/v1/embeddings", json=body | {"encoding_format": "base64"}).json()["data"]
    assert [base64.b64decode(one["embedding"]) for one in packed] == [v.tobytes() for v in own]


def test_a_text_among_tokens(http, lm):
    data = http.post("/v1/embeddings", json={"input": [5, "read", 6]}).json()["data"]
    tokens = [5, *lm.tokenizer.encode("read", add_special=False), 6]
    assert np.float32(data[0]["embedding"]).tobytes() == lm.embed(tokens).tobytes()


@pytest.mark.parametrize("route", ["/embedding", "/embeddings"])
def test_as_the_server_of_llama_cpp(http, lm, route):
    found = http.post(route, json={"content": "def read("}).json()
    assert [one["index"] for one in found] == [0]
    assert np.float32(found[0]["embedding"]).tobytes() == lm.embed("def read(").tobytes()
    rows = http.post(route, json={"input": TEXTS, "pooling": "none"}).json()
    for one, own in zip(rows, lm.embed(TEXTS, pooling="none"), strict=True):
        assert np.float32(one["embedding"]).tobytes() == own.tobytes()
    raw = http.post(route, json={"content": "x", "embd_normalize": -1}).json()
    assert np.float32(raw[0]["embedding"][0]).tobytes() == lm.embed("x", normalize=False).tobytes()


@pytest.fixture
def client_of_ollama(address):
    with ollama.Client(host=address) as made:
        yield made


def test_ollamas_client(client_of_ollama, lm):
    embed = client_of_ollama.embed
    found = embed("demo", TEXTS)
    for one, own in zip(found.embeddings, lm.embed(TEXTS), strict=True):
        assert np.float32(one).tobytes() == own.tobytes()
    assert found.prompt_eval_count == sum(len(lm.tokenizer.encode(text)) for text in TEXTS)
    older = client_of_ollama.embeddings("demo", TEXTS[0])
    assert np.float32(older.embedding).tobytes() == lm.embed(TEXTS[0], normalize=False).tobytes()
    assert embed("demo", []).embeddings == []


def test_ollamas_client_has_long_texts_cut(client_of_ollama, lm):
    embed, long = client_of_ollama.embed, "x y " * 400
    cut = lm.tokenizer.encode(long)[: lm.n_ctx]
    assert np.float32(embed("demo", long).embeddings[0]).tobytes() == lm.embed(cut).tobytes()
    with pytest.raises(ollama.ResponseError, match="more than the context"):
        embed("demo", long, truncate=False)
    with pytest.raises(ollama.ResponseError, match="dimensions"):
        embed("demo", "x", dimensions=8)


def test_a_client_that_goes_ends_the_work(model):
    """Else the next one waits behind hundreds of passes."""
    with mtpcore.LM(model, n_ctx=200, n_seq_max=1, threads=1) as lm:
        read, n_passes = lm._embedder.embed, []

        def count(prompts, kind):
            for vectors in read(prompts, kind):
                n_passes.append(len(vectors))
                time.sleep(0.02)
                yield vectors

        lm._embedder.embed = count
        with serving(lm) as url:
            host, port = url.removeprefix("http://").split(":")
            body = json.dumps({"input": [[5]] * 2000})
            head = f"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            with socket.create_connection((host, int(port))) as client:
                client.sendall((head + body).encode())
                while len(n_passes) < 3:
                    time.sleep(0.01)
            assert httpx2.post(f"{url}/v1/embeddings", json={"input": [5]}).status_code == 200
            assert len(n_passes) < 1000


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": "x", "content": "y"}, "input"),
        ({"input": {"content": "x"}}, "input"),
        ({"input": {"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}}, "input"),
        ({"input": "x", "dimensions": 8}, "dimensions"),
        ({"input": "x", "pooling": "none"}, "pooling"),
        ({"input": "x", "pooling": "max"}, "pooling"),
        ({"input": "x", "embd_normalize": 1}, "embd_normalize"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "x", "tap": "nothing"}, None),
        ({"input": [[]]}, None),
        ({"input": [99999]}, None),
        ({"input": [-1]}, None),
        ({"input": "x y " * 400}, None),
    ],
)
def test_what_is_refused(http, body, param):
    found = http.post("/v1/embeddings", json=body)
    assert found.status_code == 400
    assert found.json()["error"]["param"] == param
    assert http.post("/v1/embeddings", json={"input": "x"}).status_code == 200


def test_a_server_has_a_pooling(lm):
    settings = ServerSettings(pooling="none")
    with serving(lm, settings) as url, httpx2.Client(base_url=url, timeout=60) as http:
        rows = http.post("/embeddings", json={"input": [5, 6, 7]}).json()[0]["embedding"]
        assert len(rows) == 3
        assert http.post("/v1/embeddings", json={"input": [5]}).status_code == 400
        asked = http.post("/v1/embeddings", json={"input": [5], "pooling": "mean"})
        assert asked.status_code == 200
