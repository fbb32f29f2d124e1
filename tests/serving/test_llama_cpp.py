"""The own routes of llama.cpp's server: texts, and what stands between two."""

import json

import httpx2
import ollama
import pytest
from harness.originals import take_apart
from harness.served import serving

import mtpcore

PROMPT = "def read_config(path):"
BODY = {"prompt": PROMPT, "n_predict": 12, "seed": 3}
KEYS = {"fim_pre": 300, "fim_suf": 301, "fim_mid": 302}
REPOSITORIES = {"fim_rep": 303, "fim_sep": 304}


def test_a_text_is_that_of_the_lm(http, lm):
    found = http.post("/completion", json=BODY | {"return_tokens": True}).json()
    own = lm.generate(PROMPT, max_tokens=12, seed=3)
    assert (found["content"], found["tokens"]) == (own.text, list(own.tokens))
    assert (found["stop"], found["truncated"]) == (True, False)
    assert found["stop_type"] == {"end": "eos", "length": "limit"}[own.finish_reason]
    assert found["tokens_predicted"] == len(own.tokens)
    assert found["tokens_evaluated"] == own.stats.prompt_tokens
    assert found["generation_settings"]["seed"] == 3
    assert found["generation_settings"]["n_predict"] == 12


def test_a_stream_has_the_same_text(http):
    whole = http.post("/completion", json=BODY).json()
    lines = http.post("/completion", json=BODY | {"stream": True}).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    *parts, last = events
    assert "".join(part["content"] for part in events) == whole["content"]
    assert all(part["tokens"] and not part["stop"] for part in parts)
    assert (last["stop"], last["stop_type"]) == (True, whole["stop_type"])


def test_several_prompts_and_probabilities(http, lm):
    body = BODY | {"prompt": [PROMPT, [5, 6, 7]], "n_probs": 2, "temperature": 0}
    first, second = http.post("/completion", json=body).json()
    assert [first["index"], second["index"]] == [0, 1]
    own = lm.generate([5, 6, 7], max_tokens=12, temperature=0, logprobs=2)
    assert second["content"] == own.text
    shown = second["completion_probabilities"]
    assert [one["id"] for one in shown] == list(own.tokens)
    assert [[top["id"] for top in one["top_logprobs"]] for one in shown] == [
        [token for token, _ in one.top] for one in own.logprobs
    ]


def test_facts_that_were_asked_for_alone(http):
    body = BODY | {"response_fields": ["content", "generation_settings/n_predict", "none"]}
    found = http.post("/completion", json=body).json()
    assert found.keys() == {"content", "generation_settings/n_predict"}


def test_a_text_in_a_given_form(http):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    body = BODY | {"json_schema": schema | {"additionalProperties": False}, "n_predict": 40}
    assert json.loads(http.post("/completion", json=body).json()["content"])["a"] in (1, 2)
    text = http.post("/completion", json=BODY | {"grammar": 'root ::= "yes" | "no"'}).json()
    assert text["content"] in ("yes", "no")


@pytest.mark.parametrize(
    "more", [{"post_sampling_probs": True}, {"t_max_predict_ms": 5}, {"n_indent": 4}, {"n_cmpl": 2}]
)
def test_what_is_refused(http, more):
    found = http.post("/completion", json=BODY | more)
    assert (found.status_code, found.json()["error"]["param"]) == (400, next(iter(more)))


@pytest.fixture(scope="module", params=[KEYS, KEYS | REPOSITORIES], ids=["three", "repositories"])
def filling(request, tmp_path_factory):
    """A server of a model that fills in the middle, and its LM."""
    parts, path = take_apart("demo"), tmp_path_factory.mktemp("infill") / "model.gguf"
    parts.metadata |= {f"tokenizer.ggml.{key}_token_id": id for key, id in request.param.items()}
    parts.write(path)
    with mtpcore.LM(path, n_ctx=200, draft=0, threads=1) as lm, serving(lm) as url:
        yield lm, url, request.param


def test_the_prompt_is_llama_cpps(filling):
    """The order that its server builds, read of its source."""
    lm, _, keys = filling
    encode = lm.tokenizer.encode

    def plain(text):
        return encode(text, add_special=False)

    bos = encode("")[:1] if lm.tokenizer.vocabulary.add_bos else []
    files = [("a.py", "import os\n")]
    expected = []
    if "fim_sep" in keys:
        expected += [303, *plain("myproject\n"), 304, *plain("a.py\n"), *plain("import os\n")]
        expected += [304, *plain("filename\n")]
    else:
        expected += [*plain("\n\n--- snippet ---\n\n"), *plain("import os\n")]
    expected += [*bos, 300, *plain("def f("), *plain("x"), 301, *plain("): pass"), 302]
    assert lm.tokenizer.encode_infill("def f(", "): pass", begun="x", files=files) == expected


def test_what_stands_between_two_texts(openai, filling):
    lm, url, _ = filling
    options = {"max_tokens": 9, "seed": 3}
    own = lm.generate(lm.tokenizer.encode_infill("def f(", "): pass"), **options).text
    body = {"input_prefix": "def f(", "input_suffix": "): pass", "n_predict": 9, "seed": 3}
    with httpx2.Client(base_url=url, timeout=60) as http:
        assert http.post("/infill", json=body).json()["content"] == own
        extra = {"input_extra": [{"text": "import os\n"}], "prompt": "x"}
        tokens = lm.tokenizer.encode_infill(
            "def f(", "): pass", begun="x", files=[("tmp", "import os\n")]
        )
        assert http.post("/infill", json=body | extra).json()["content"] == (
            lm.generate(tokens, **options).text
        )
        for wrong in ({"input_extra": [{}]}, {"input_extra": [{"text": 4}]}, {"prompt": [1]}):
            assert http.post("/infill", json=body | wrong).status_code == 400
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        found = client.completions.create(model="m", prompt="def f(", suffix="): pass", **options)
        assert found.choices[0].text == own
    with ollama.Client(host=url) as client:
        found = client.generate(
            "m", "def f(", suffix="): pass", options={"num_predict": 9, "seed": 3}
        )
        assert found.response == own
        assert "insert" in client.show("model").capabilities


def test_a_model_that_does_not_fill_in_says_so(openai, http, client):
    body = {"input_prefix": "a", "input_suffix": "b"}
    found = http.post("/infill", json=body)
    assert found.status_code == 400
    assert "no token for prefix, suffix, middle" in found.json()["error"]["message"]
    with pytest.raises(openai.BadRequestError, match="fill in"):
        client.completions.create(model="demo", prompt="a", suffix="b")
