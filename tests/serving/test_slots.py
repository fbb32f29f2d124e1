"""Slots over HTTP: what was saved spares work, with the same text and the same drafts."""

import threading

import httpx2
import pytest
from harness.served import serving

import mtpcore
from mtpcore.serving import ServerSettings

PROMPT = "def read_config(path):\n    " * 4
BODY = {
    "prompt": PROMPT,
    "n_predict": 20,
    "seed": 4,
    "ignore_eos": True,
    "speculative": {"draft": 3},
}


@pytest.fixture
def http(model, tmp_path):
    """A server that saves what its slots hold."""
    with mtpcore.LM(model, n_ctx=200, draft=3, n_seq_max=2, threads=1) as lm:
        settings = ServerSettings(slot_folder=tmp_path)
        with serving(lm, settings) as url, httpx2.Client(base_url=url, timeout=60) as made:
            made.lm = lm
            yield made


def act(http, slot, action, **body):
    return http.post(f"/slots/{slot}?action={action}", json=body)


def test_a_restored_text_is_gone_on_from(http, tmp_path):
    first = http.post("/completion", json=BODY).json()
    n_prompt, slot = first["tokens_evaluated"], first["id_slot"]
    assert first["timings"]["cache_n"] == 0
    saved = act(http, slot, "save", filename="one.bin").json()
    assert saved["n_saved"] >= n_prompt + 19
    assert saved["n_written"] == (tmp_path / "one.bin").stat().st_size
    for i in range(2):
        assert act(http, i, "erase").status_code == 200
    assert [one["n_tokens"] for one in http.get("/slots").json()] == [0, 0]
    cold = http.post("/completion", json=BODY).json()
    assert cold["timings"]["cache_n"] == 0
    for i in range(2):
        act(http, i, "erase")
    found = act(http, 1, "restore", filename="one.bin").json()
    assert (found["n_restored"], found["n_read"]) == (saved["n_saved"], saved["n_written"])
    warm = http.post("/completion", json=BODY).json()
    assert warm["timings"]["cache_n"] == n_prompt - 1
    assert warm["content"] == cold["content"] == first["content"]
    assert warm["timings"]["draft_n_accepted"] == cold["timings"]["draft_n_accepted"] > 0


def test_other_servers_read_it(http, model, tmp_path):
    first = http.post("/completion", json=BODY).json()
    act(http, first["id_slot"], "save", filename="one.bin")
    with mtpcore.LM(model, n_ctx=150, draft=3, n_seq_max=3, threads=1) as lm:
        settings = ServerSettings(slot_folder=tmp_path)
        with serving(lm, settings) as url, httpx2.Client(base_url=url, timeout=60) as other:
            assert act(other, 2, "restore", filename="one.bin").status_code == 200
            warm = other.post("/completion", json=BODY).json()
    assert warm["content"] == first["content"]
    assert warm["timings"]["cache_n"] == first["tokens_evaluated"] - 1


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", ".hidden", "a\x00b", "x" * 300, "a\nb"],
)
def test_files_outside_the_folder_are_out_of_reach(http, tmp_path, name):
    slot = http.post("/completion", json=BODY).json()["id_slot"]
    before = sorted(tmp_path.parent.rglob("*"))
    for action in ("save", "restore"):
        found = act(http, slot, action, filename=name)
        assert (found.status_code, found.json()["error"]["param"]) == (400, "filename")
    assert sorted(tmp_path.parent.rglob("*")) == before


def test_what_is_refused(http, tmp_path):
    slot = http.post("/completion", json=BODY).json()["id_slot"]
    assert act(http, 2, "erase").status_code == 400
    assert act(http, "x", "erase").status_code == 400
    assert act(http, slot, "burn").status_code == 400
    assert act(http, slot, "save").status_code == 400
    assert act(http, slot, "restore", filename="none.bin").status_code == 404
    assert act(http, 1 - slot, "save", filename="one.bin").status_code == 400  # it is empty
    (tmp_path / "bad.bin").write_bytes(b"x" * 1000)
    assert act(http, slot, "restore", filename="bad.bin").status_code == 400
    again = http.post("/completion", json=BODY)
    assert again.json()["timings"]["cache_n"] == 0  # what could not be restored is empty


def test_a_text_that_is_being_written_keeps_its_slot(http):
    step, waits = http.lm.generator.step, threading.Event()

    def slowly():
        waits.wait(0.5)
        return step()

    http.lm.generator.step = slowly
    long = BODY | {"n_predict": 80, "stream": True}
    with httpx2.stream("POST", f"{http.base_url}/completion", json=long, timeout=60) as stream:
        lines = stream.iter_lines()
        while "content" not in next(lines):
            pass
        busy = [one["is_processing"] for one in http.get("/slots").json()]
        found = act(http, busy.index(True), "erase")
        assert (found.status_code, found.headers["retry-after"]) == (503, "1")
        waits.set()


def test_without_a_folder_nothing_is_saved(address):
    with httpx2.Client(base_url=address, timeout=60) as http:
        found = act(http, 0, "save", filename="x.bin")
        assert found.status_code == 501
        assert "--slot-save-path" in found.json()["error"]["message"]
