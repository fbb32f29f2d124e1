"""Adapters over HTTP: as models of their own, by number, and each text as it is alone."""

from concurrent.futures import ThreadPoolExecutor

import httpx2
import numpy as np
import pytest
from harness.adapters import matrices_of, write_adapter
from harness.served import serving

import mtpcore
from mtpcore.serving import ServerSettings

TEXT = {"prompt": "def read_config(path):", "seed": 4, "temperature": 0.7, "max_tokens": 12}


@pytest.fixture(scope="module")
def lm(model, tmp_path_factory):
    folder, shapes = tmp_path_factory.mktemp("adapters"), matrices_of(model)
    paths = {name: folder / f"{name}.gguf" for name in ("sql", "json")}
    for seed, path in enumerate(paths.values()):
        write_adapter(path, model.architecture, shapes, seed=seed, size=0.1)
    with mtpcore.LM(
        model, n_ctx=200, draft=3, n_seq_max=4, threads=1, adapters=paths, default_adapters=["sql"]
    ) as made:
        yield made


@pytest.fixture(scope="module")
def http(lm):
    settings = ServerSettings(name="demo")
    with serving(lm, settings) as url, httpx2.Client(base_url=url, timeout=60) as made:
        yield made


def written(http, **fields):
    answer = http.post("/v1/completions", json=TEXT | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def alone(lm, adapters):
    options = {name: value for name, value in TEXT.items() if name != "prompt"}
    return lm.generate(TEXT["prompt"], adapters=adapters, **options).text


def test_each_adapter_is_a_model(http, lm):
    models = {one["id"]: one for one in http.get("/v1/models").json()["data"]}
    assert [*models] == ["sql", "json", "demo"]
    assert models["json"]["parent"] == "demo"
    assert http.get("/v1/models/json").json() == models["json"]
    assert http.get("/v1/models/none").status_code == 404
    texts = {name: written(http, model=name) for name in models}
    assert texts == {
        "demo": alone(lm, ["sql"]),
        "sql": alone(lm, ["sql"]),
        "json": alone(lm, ["json"]),
    }
    assert written(http, model="json:latest") == texts["json"]


def test_adapters_by_number(http, lm):
    found = http.get("/lora-adapters").json()
    assert [(one["id"], one["name"], one["scale"]) for one in found] == [
        (0, "sql", 1.0),
        (1, "json", 0.0),
    ]
    assert written(http, lora=[]) == alone(lm, [])
    both = {"sql": 0.5, "json": 2.0}
    chosen = [{"id": 0, "scale": 0.5}, {"id": 1, "scale": 2.0}]
    assert written(http, lora=chosen) == alone(lm, both)
    assert written(http, model="json", lora=chosen) == alone(lm, both)
    refused = http.post("/v1/completions", json=TEXT | {"lora": [{"id": 2, "scale": 1}]})
    assert refused.status_code == 400
    assert "there are 2" in refused.text


def test_what_requests_get_that_name_none_can_be_changed(http, lm):
    try:
        body = [{"id": 1, "scale": 1.0}]
        assert http.post("/lora-adapters", json=body).json() == {"success": True}
        assert [one["scale"] for one in http.get("/lora-adapters").json()] == [0.0, 1.0]
        assert written(http) == alone(lm, ["json"])
        for bad in ([{"id": 9, "scale": 1.0}], [{"id": "x"}], {"id": 1, "scale": 1.0}):
            assert http.post("/lora-adapters", json=bad).status_code == 400
        assert written(http) == alone(lm, ["json"])
    finally:
        lm.default_adapters = ["sql"]


def test_a_crowd_gets_what_each_gets_alone(http, lm):
    names = ["demo", "sql", "json", None] * 6
    wanted = {None: alone(lm, ["sql"]), "demo": alone(lm, ["sql"])}
    wanted |= {name: alone(lm, [name]) for name in ("sql", "json")}
    with ThreadPoolExecutor(8) as pool:
        texts = [*pool.map(lambda name: written(http, **({"model": name} if name else {})), names)]
    assert texts == [wanted[name] for name in names]


def test_embeddings_have_adapters_too(http, lm):
    def rows(model):
        body = {"input": "some text", "model": model, "encoding_format": "float"}
        return http.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]

    found = {name: rows(name) for name in ("demo", "sql", "json")}
    assert found["demo"] == found["sql"] != found["json"]
    for name in ("sql", "json"):
        assert np.array_equal(np.float32(found[name]), lm.embed("some text", adapters=[name]))
    plain = mtpcore.LM("demo", n_ctx=200, draft=0)
    assert np.array_equal(lm.embed("some text", adapters=[]), plain.embed("some text"))
    plain.close()
