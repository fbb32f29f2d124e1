"""Ollama's own client, unchanged: chat, texts, what it is told of the model, errors."""

import json

import ollama
import pytest
from gguf import GGUFReader
from harness.served import serving

import mtpcore
from mtpcore.serving import ServerSettings

HI = [{"role": "user", "content": "hi"}]
OPTIONS = {"num_predict": 12, "seed": 3, "temperature": 0.9}
OWN = {"max_tokens": 12, "seed": 3, "temperature": 0.9}
PROMPT = "def read_config(path):"


@pytest.fixture
def client(address):
    """Ollama's own client."""
    with ollama.Client(host=address) as made:
        yield made


def test_an_answer_is_that_of_the_lm(client, lm):
    found = client.chat("demo", messages=HI, options=OPTIONS)
    own = lm.chat(HI, **OWN)
    assert (found.message.role, found.message.content) == ("assistant", own.text)
    assert (found.done, found.eval_count) == (True, len(own.tokens))
    assert found.prompt_eval_count == own.stats.prompt_tokens
    assert found.done_reason == {"end": "stop", "length": "length"}[own.finish_reason]
    assert found.total_duration == found.prompt_eval_duration + found.eval_duration > 0


def test_a_stream_has_the_same_text_and_an_end(client):
    whole = client.chat("demo", messages=HI, options=OPTIONS)
    *parts, last = client.chat("demo", messages=HI, options=OPTIONS, stream=True)
    assert "".join(part.message.content for part in parts) == whole.message.content != ""
    assert not any(part.done for part in parts)
    assert (last.done, last.done_reason) == (True, whole.done_reason)
    assert last.eval_count == whole.eval_count


def test_texts_stream_unless_they_are_not_to(http):
    """Their servers' default, which is not that of other APIs."""
    found = http.post("/api/generate", json={"prompt": "x", "options": OPTIONS})
    assert found.headers["content-type"].startswith("application/x-ndjson")
    lines = [json.loads(line) for line in found.text.splitlines()]
    assert len(lines) > 1
    body = {"prompt": "x", "options": OPTIONS, "stream": False}
    whole = http.post("/api/generate", json=body).json()
    assert "".join(line["response"] for line in lines) == whole["response"]


def test_a_text_is_answered_or_continued(client, lm):
    found = client.generate("demo", PROMPT, options=OPTIONS, system="be brief")
    said = [{"role": "system", "content": "be brief"}, {"role": "user", "content": PROMPT}]
    assert found.response == lm.chat(said, **OWN).text
    found = client.generate("demo", PROMPT, options=OPTIONS, raw=True)
    assert found.response == lm.generate(PROMPT, **OWN).text


def test_a_file_without_a_template_continues_texts():
    with mtpcore.LM("demo", n_ctx=200, draft=0, threads=1) as lm:
        lm.model.chat_template = None
        with serving(lm) as url, ollama.Client(host=url) as client:
            found = client.generate("demo", PROMPT, options=OPTIONS)
            assert found.response == lm.generate(PROMPT, **OWN).text
            with pytest.raises(ollama.ResponseError, match="no chat template"):
                client.generate("demo", PROMPT, system="be brief")


def test_drafts_are_chosen_a_request_and_change_nothing(http):
    def ask(**options):
        body = {"prompt": PROMPT, "options": OPTIONS | {"num_predict": 24} | options}
        return http.post("/api/generate", json=body | {"stream": False}).json()

    plain, drafted = ask(draft_num_predict=0), ask(draft_num_predict=3)
    assert plain["response"] == drafted["response"]
    assert "draft_n" not in plain["timings"]
    assert drafted["timings"]["draft_n"] > 0


def test_logprobs(client, lm):
    options = {"num_predict": 6, "temperature": 0}
    found = client.chat("demo", messages=HI, options=options, logprobs=True, top_logprobs=2)
    own = lm.chat(HI, max_tokens=6, temperature=0, logprobs=2)
    assert [one.logprob for one in found.logprobs] == [one.logprob for one in own.logprobs]
    assert all(len(one.top_logprobs) == 2 for one in found.logprobs)
    parts = client.chat("demo", messages=HI, options=options, logprobs=True, stream=True)
    assert sum(len(part.logprobs or ()) for part in parts) == len(own.tokens)


def test_calls_and_results_of_tools_are_read(client, lm, monkeypatch):
    seen, encode = [], lm.encode_chat

    def noted(messages, **more):
        seen.append((messages, more))
        return encode(messages, **more)

    monkeypatch.setattr(lm, "encode_chat", noted)
    call = {"name": "clock", "arguments": {"zone": "UTC"}}
    for _ in range(2):
        client.chat(
            "demo",
            messages=[
                *HI,
                {"role": "assistant", "thinking": "when?", "tool_calls": [{"function": call}]},
                {"role": "tool", "content": "noon", "tool_name": "clock"},
            ],
            tools=[{"type": "function", "function": {"name": "clock"}}],
            options=OPTIONS,
            think="high",
        )
    ((_, said, result), more), again = seen
    assert again == seen[0]  # ids that were drawn would make it another prompt
    id = said["tool_calls"][0].pop("id")
    assert id.startswith("call_")
    assert said == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "when?",
        "tool_calls": [{"type": "function", "function": call}],
    }
    assert result == {"role": "tool", "content": "noon", "name": "clock"}
    assert more["template_options"] == {"reasoning_effort": "high"}
    assert more["tools"][0]["function"]["name"] == "clock"
    client.chat("demo", messages=HI, think=False, options=OPTIONS)
    assert seen[-1][1]["template_options"] == {"enable_thinking": False}


def test_what_there_is_is_said(client, lm, http):
    (listed,) = client.list().models
    assert (listed.model, listed.size, listed.details.format) == ("demo", lm.model.n_bytes, "gguf")
    n_weights = sum(int(tensor.n_elements) for tensor in GGUFReader(lm.model.path).tensors)
    assert listed.details.parameter_size == f"{n_weights / 1e6:.1f}M"
    assert listed.details.quantization_level == "Q8_0"
    (loaded,) = client.ps().models
    assert (loaded.digest, loaded.context_length, loaded.size_vram) == (listed.digest, 200, 0)
    for name in ("demo", "demo:latest"):
        shown = client.show(name)
        assert shown.modelinfo["general.architecture"] == lm.model.architecture
        assert shown.modelinfo["tokenizer.ggml.tokens"] is None
        assert shown.template == lm.model.chat_template.source
        assert shown.capabilities == ["completion", "tools"]
    with pytest.raises(ollama.ResponseError) as caught:
        client.show("other")
    assert caught.value.status_code == 404
    assert http.get("/api/version").json()["version"] == mtpcore.__version__
    assert http.get("/").text == "Ollama is running"
    assert http.head("/").status_code == 200


def test_an_empty_request_has_the_model_loaded(client):
    for found in (client.chat("demo"), client.generate("demo", keep_alive=-1)):
        assert (found.done, found.done_reason) == (True, "load")


@pytest.mark.parametrize(
    "fields",
    [
        {"format": "yaml"},
        {"format": {"type": "strng"}},
        {"options": {"mirostat": 2}},
        {"options": {"typical_p": 1.5}},
        {"options": {"repeat_penalty": 1.1, "repeat_last_n": -2}},
        {"options": {"temperature": -1}},
        {"options": {"draft_num_predict": -1}},
        {"top_logprobs": 21},
        {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]},
        {"messages": [{"role": "nobody", "content": ""}]},
        {"messages": [{"content": "no role"}]},
        {"messages": [{"role": "user", "content": "long " * 500}]},
    ],
)
def test_what_makes_no_sense_is_refused_in_their_shape(http, fields):
    found = http.post("/api/chat", json={"messages": HI} | fields)
    assert found.status_code == 400
    assert list(found.json()) == ["error"]
    assert isinstance(found.json()["error"], str)


def test_fields_that_would_change_a_text_are_refused_by_name(client):
    for fields in ({"template": "x"}, {"context": [1]}, {"images": [b"x"]}):
        with pytest.raises(ollama.ResponseError, match=next(iter(fields))):
            client.generate("demo", PROMPT, **fields)
    assert client.generate("demo", PROMPT, context=[], options=OPTIONS).response


def test_errors_in_a_stream_are_lines(lm):
    def fail():
        raise OSError("planted")

    with serving(lm, ServerSettings()) as url, ollama.Client(host=url) as client:
        lm.generator.step = fail
        try:
            with pytest.raises(ollama.ResponseError, match="OSError: planted"):
                list(client.chat("demo", messages=HI, stream=True))
        finally:
            del lm.generator.step
        assert client.chat("demo", messages=HI, options=OPTIONS).done
