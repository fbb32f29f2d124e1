"""What a server says of contexts, links, and what flowed through them."""

import httpx2
import pytest
from harness.served import serving

import mtpcore


def ask(url, **fields):
    asked = {"prompt": "def read_config(path):", "max_tokens": 40, "seed": 5} | fields
    return httpx2.post(f"{url}/v1/completions", json=asked, timeout=60).json()


def flow(url):
    return httpx2.get(f"{url}/cross").json()


@pytest.mark.parametrize("name", ["demo", "demo:eagle3", "demo:mimo2"])
def test_every_row_of_the_target_flows_through_each_link(name):
    with mtpcore.LM(name, n_ctx=200, threads=1, draft=3) as lm, serving(lm) as url:
        before = flow(url)
        assert before["stats"]["tokens"] == 0
        assert {one["rows"] for one in before["links"]} == {0}
        for seed in (1, 2):
            usage = ask(url, seed=seed)["usage"]
        after = flow(url)
        stats = lm.generator.stats
        read = stats.prompt_tokens - stats.cached_tokens
        from_target = [one for one in after["links"] if one["src"] == "llm"]
        assert from_target
        assert {one["rows"] for one in from_target} == {read + stats.passes + stats.drafted}
        assert usage["completion_tokens"] == 40
        assert after["stats"]["tokens"] == 80
        assert after["stats"]["passes"] == stats.passes
        assert sum(one["accepted"] for one in after["drafters"].values()) == stats.accepted > 0
        assert after["stats"]["accepted_per_position"] == stats.accepted_per_position


def test_contexts_and_drafters_are_named_as_requests_name_them():
    with mtpcore.LM("demo", n_ctx=200, threads=1, n_seq_max=2) as lm, serving(lm) as url:
        found = flow(url)
        assert found["contexts"].keys() == {"llm", "draft"}
        assert found["contexts"]["llm"] | {"tokens": 0} == {
            "graph": "llm",
            "program": "glm4moe",
            "file": "demo.gguf",
            "tokens": 0,
            "n_ctx": 200,
            "n_seq_max": 2,
        }
        (link,) = found["links"]
        assert (link["src"], link["tap"], link["dst"]) == ("llm", "hidden", "draft")
        shapes = {one["name"]: one["shape"] for one in found["drafters"].values()}
        assert shapes == {"glm_nextn": "chain", "lookup": "proposer"}
        for drafter in found["drafters"].values():
            answer = ask(url, speculative={"draft": 2, "drafter": drafter["name"]})
            assert answer["usage"]["completion_tokens"] == 40
        ask(url, max_tokens=3)
        assert flow(url)["contexts"]["llm"]["tokens"] > 0
