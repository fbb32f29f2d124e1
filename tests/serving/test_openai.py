"""OpenAI's own client, unchanged: chat, completions, streams, errors."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from harness.served import serving

import mtpcore
from mtpcore.decoding import TokenLogprobs
from mtpcore.gguf import ChatTemplate
from mtpcore.serving import ServerSettings
from mtpcore.serving.logprobs import LegacyLogprobs

HI = [{"role": "user", "content": "hi"}]
PROMPT = "def read_config(path):"


def stream_text(stream):
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_an_answer_is_that_of_the_lm(client, lm):
    found = client.chat.completions.create(
        model="demo", messages=HI, max_tokens=12, seed=3, temperature=0.9
    )
    own = lm.chat(HI, max_tokens=12, seed=3, temperature=0.9)
    assert found.choices[0].message.content == own.text
    assert found.choices[0].finish_reason == {"end": "stop"}.get(
        own.finish_reason, own.finish_reason
    )
    assert found.usage.completion_tokens == len(own.tokens)
    assert found.usage.prompt_tokens == own.stats.prompt_tokens
    assert found.system_fingerprint.startswith("mtpcore-")


def test_a_stream_has_the_same_text_its_usage_and_an_end(client, lm):
    options = {"model": "demo", "messages": HI, "max_tokens": 12, "seed": 3}
    whole = client.chat.completions.create(**options)
    chunks = list(
        client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
    )
    assert stream_text(chunks) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == (
        whole.choices[0].finish_reason
    )
    assert [c.usage for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].choices == []


def test_the_helper_of_streams_reads_it(client):
    with client.chat.completions.stream(
        model="demo", messages=HI, max_tokens=60, seed=3, n=2, stop=list("aeiou ")
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.done"} <= kinds
    assert [choice.index for choice in final.choices] == [0, 1]


def test_several_texts_of_one_prompt(client):
    options = {"model": "demo", "messages": HI, "max_tokens": 12, "temperature": 1.5}
    alone = client.chat.completions.create(**options, seed=7)
    several, again = (client.chat.completions.create(**options, seed=7, n=3) for _ in range(2))
    texts = [choice.message.content for choice in several.choices]
    assert texts[0] == alone.choices[0].message.content
    assert len(set(texts)) == 3
    assert texts == [choice.message.content for choice in again.choices]
    assert several.usage.prompt_tokens == alone.usage.prompt_tokens


def test_logprobs_of_a_chat(client, lm):
    options = {"messages": HI, "max_tokens": 6, "temperature": 0}
    found = client.chat.completions.create(model="demo", **options, logprobs=True, top_logprobs=2)
    own = lm.chat(**options, logprobs=2)
    content = found.choices[0].logprobs.content
    assert [one.logprob for one in content] == [one.logprob for one in own.logprobs]
    assert all(len(one.top_logprobs) == 2 for one in content)
    assert b"".join(bytes(one.bytes) for one in content).decode() == own.text


@pytest.mark.parametrize("prompt", [PROMPT, [PROMPT, "x ="], [5, 6, 7], [[5, 6], [7]]])
def test_completions_take_texts_and_tokens(client, lm, prompt):
    found = client.completions.create(model="demo", prompt=prompt, max_tokens=5, temperature=0)
    several = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    own = lm.generate(several, max_tokens=5, temperature=0)
    assert [choice.text for choice in found.choices] == [one.text for one in own]


PARTS = "x = '漢字' 😀"
"""Characters that are several tokens each."""


@pytest.mark.parametrize("max_tokens", [0, 1, 9])
def test_an_echoed_prompt_has_its_logprobs(client, lm, max_tokens):
    """Of texts, tokens, and several of either; the prefix cache has them, and is passed over."""
    ids = lm.tokenizer.encode(PARTS)
    options = {"model": "demo", "max_tokens": max_tokens, "temperature": 0, "echo": True}
    for prompt in (PARTS, ids, [PARTS, PROMPT], [ids, lm.tokenizer.encode(PROMPT)]):
        found = client.completions.create(**options, prompt=prompt, logprobs=2)
        prompts = [ids, lm.tokenizer.encode(PROMPT)][: len(found.choices)]
        for choice, tokens in zip(found.choices, prompts, strict=True):
            own = lm.generate(
                tokens, max_tokens=max_tokens, temperature=0, logprobs=2, prompt_logprobs=2
            )
            ends = () if own.end_logprobs is None else (own.end_logprobs,)
            known = [*own.prompt_logprobs, *own.logprobs, *ends]
            logprobs = choice.logprobs
            assert choice.text == lm.tokenizer.decode(tokens) + own.text
            assert logprobs.token_logprobs == [None, *(one.logprob for one in known)]
            assert logprobs.tokens[1:] == [one.text for one in known]
            assert logprobs.top_logprobs[0] is None
            for one, top in zip(known, logprobs.top_logprobs[1:], strict=True):
                assert max(top.values()) == one.top[0][1]
                assert one.text in top
            offsets = logprobs.text_offset
            assert offsets == sorted(offsets)
            for text, at in zip(logprobs.tokens, offsets, strict=True):
                if "\ufffd" not in text:  # a part of a character
                    assert choice.text[at : at + len(text)] == text
        alone = client.completions.create(**options, prompt=prompt)
        assert [one.text for one in alone.choices] == [one.text for one in found.choices]
        assert {one.logprobs for one in alone.choices} == {None}
        assert found.usage.prompt_tokens_details.cached_tokens == 0


def test_of_tokens_with_one_text_the_likeliest_is_shown(lm):
    """Parts of characters have one: of these two the second would be no greedy choice."""
    found = TokenLogprobs(7, -3.0, ((9, -0.5), (7, -3.0)), "\ufffd", ("\ufffd", "\ufffd"))
    other = TokenLogprobs(5, -4.0, ((9, -0.5),), "a", ("b",))
    (one, two) = LegacyLogprobs(lm.tokenizer).spell([found, other])["top_logprobs"]
    assert (one, two) == ({"\ufffd": -0.5}, {"b": -0.5, "a": -4.0})


def test_a_stream_echoes_a_prompt_with_its_logprobs(client):
    options = {"model": "demo", "prompt": [PARTS, PROMPT], "max_tokens": 9, "temperature": 0}
    for options["logprobs"] in (None, 1):
        whole = client.completions.create(**options, echo=True, n=2)
        chunks = [*client.completions.create(**options, echo=True, n=2, stream=True)]
        for choice in whole.choices:
            own = [c.choices[0] for c in chunks if c.choices[0].index == choice.index]
            assert "".join(one.text for one in own) == choice.text
            known = [one.logprobs for one in own if one.logprobs is not None]
            assert (not known) == (options["logprobs"] is None)
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset") * bool(known):
                joined = [value for part in known for value in getattr(part, name)]
                assert joined == getattr(choice.logprobs, name)
    assert chunks[-1].timings["predicted_n"] == whole.usage.completion_tokens


def test_a_prompt_can_be_evaluated_whatever_follows_it(client, lm):
    """As lm-evaluation-harness does it: one token more is asked for, and the last left out."""
    end = min(lm.tokenizer.end_tokens)
    options = {"model": "demo", "prompt": [5, 6, 7], "max_tokens": 1, "temperature": 0}
    for bias in ({}, {end: 100}):
        found = client.completions.create(**options, echo=True, logprobs=1, logit_bias=bias)
        logprobs = found.choices[0].logprobs.token_logprobs
        assert found.usage.completion_tokens == (0 if bias else 1)
        wanted = lm.generate([5, 6, 7], max_tokens=0, prompt_logprobs=0).prompt_logprobs
        assert logprobs[1:-1] == [one.logprob for one in wanted]


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_a_stream_tells_drafted_pieces_and_times_where_they_are_asked_for(http, path):
    asked = {"messages": HI, "prompt": PROMPT, "max_tokens": 40, "seed": 5, "stream": True}
    asked |= {"speculative": {"draft": 4}}

    def pieces(**more):
        lines = http.post(f"/v1/{path}", json=asked | more).text.splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        return [one for one in events if "mtpcore" in one]

    plain, timed = pieces(), pieces(timings_per_token=True)
    assert [one["mtpcore"] for one in plain] == [one["mtpcore"] for one in timed]
    assert {one["mtpcore"]["drafted"] for one in plain} == {True, False}
    assert not any("timings" in one for one in plain)
    counts = [one["timings"]["predicted_n"] for one in timed]
    assert counts == sorted(counts)
    assert 0 < counts[0] < counts[-1] <= 40
    last = timed[-1]["timings"]
    assert last["draft_n"] >= last["draft_n_accepted"] > 0
    assert last["predicted_per_second"] > 0


def test_the_pace_of_a_text_is_that_after_its_first_token(http):
    for n in (1, 9):
        asked = {"prompt": PROMPT, "max_tokens": n, "ignore_eos": True}
        times = http.post("/v1/completions", json=asked).json()["timings"]
        assert times["predicted_n"] == n
        seconds = times["predicted_ms"] / 1e3
        assert times["predicted_per_second"] * seconds == pytest.approx(n - 1)
        assert times["predicted_per_token_ms"] * (n - 1) == pytest.approx(
            times["predicted_ms"] if n > 1 else 0
        )


def test_texts_end_before_stops(client, lm):
    text = lm.generate(PROMPT, max_tokens=30, temperature=0).text
    found = client.completions.create(
        model="demo", prompt=PROMPT, max_tokens=30, temperature=0, stop=text[10:14]
    )
    assert found.choices[0].text == text[: text.index(text[10:14])]
    assert found.choices[0].finish_reason == "stop"


def test_drafts_are_chosen_a_request_and_change_nothing(client):
    options = {"model": "demo", "prompt": PROMPT, "max_tokens": 24, "seed": 5}
    found = {
        str(one): client.completions.create(**options, extra_body={"speculative": one})
        for one in (False, {"draft": 3}, {"draft": 3, "drafter": "lookup"}, {"draft": "auto"})
    }
    assert len({one.choices[0].text for one in found.values()}) == 1
    plain, drafted = found["False"], found["{'draft': 3}"]
    assert not hasattr(plain, "timings") or "draft_n" not in plain.timings
    details = drafted.usage.completion_tokens_details
    assert details.accepted_prediction_tokens == drafted.timings["draft_n_accepted"] > 0
    assert drafted.metrics["speculative_decoding"]["num_draft_tokens"] == drafted.timings["draft_n"]


def test_a_seed_gives_the_same_text_alone_and_among_32(client, lm):
    def ask(i):
        draft = False if i % 2 else {"draft": 1 + i % 5}
        found = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": f"say {i % 8}"}],
            max_tokens=10 + i % 3,
            seed=i % 8,
            extra_body={"speculative": draft},
        )
        return found.choices[0].message.content

    with ThreadPoolExecutor(32) as pool:
        among = list(pool.map(ask, range(32)))
    for i, text in enumerate(among):
        alone = lm.chat(f"say {i % 8}", max_tokens=10 + i % 3, seed=i % 8, draft=0)
        assert text == alone.text


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"top_n_sigma": 0.7, "temperature": 1.5}, None),
        ({"top_n_sigma": -1, "typical_p": 0, "top_k": -1}, {"top_k": 0}),
        ({"typ_p": 0.4}, {"typical_p": 0.4}),
        ({"top_p": 0}, {"top_k": 1}),
        ({"xtc_probability": 1, "xtc_threshold": 0.05}, None),
        ({"dynatemp_range": 0.6, "dynatemp_exponent": 2}, None),
        ({"repeat_penalty": 1.8, "repeat_last_n": 3},
         {"repetition_penalty": 1.8, "penalty_last_n": 3}),
        ({"dry_multiplier": 2, "dry_base": 1.2, "dry_allowed_length": 1,
          "dry_penalty_last_n": 20, "dry_sequence_breakers": ["(", 7]}, None),
        ({"min_tokens": 18, "bad_words": ["e"]}, {"min_tokens": 18, "banned_strings": ["e"]}),
        ({"samplers": ["dry", "top_k", "temperature"], "frequency_penalty": 2, "top_p": 0.3},
         {"top_p": 1, "min_p": 0, "frequency_penalty": 0}),
    ],
)  # fmt: skip
def test_samplers_are_those_of_the_library(client, lm, fields, options):
    """By all of their names; with drafts in the server, without here."""
    wanted = lm.generate(
        "def read(", max_tokens=20, seed=5, draft=0, **(fields if options is None else options)
    )
    found = client.completions.create(
        model="demo", prompt="def read(", max_tokens=20, seed=5, extra_body=fields
    )
    assert found.choices[0].text == wanted.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, None),
        ({"temperature": "hot"}, "temperature"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"mirostat": 2}, "mirostat"),
        ({"samplers": ["temperature", "top_k"]}, "samplers"),
        ({"typical_p": 0.5, "typ_p": 0.6}, "typ_p"),
        ({"bad_words": ["a"], "banned_strings": ["b"]}, "bad_words"),
        ({"banned_strings": [""]}, None),
        ({"min_tokens": 4}, None),
        ({"dry_base": 0.5}, None),
        ({"repeat_last_n": -2}, None),
        ({"min_keep": 1}, "min_keep"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"functions": [{"name": "clock", "parameters": {}}]}, "functions"),
        ({"function_call": {"name": "clock"}}, "function_call"),
        ({"repetition_penalty": 1.1, "repeat_penalty": 1.2}, "repeat_penalty"),
        ({"repetition_penalty": 0}, None),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
        ),
        ({"speculative": {"drafts": 3}}, "speculative"),
        ({"speculative": {"drafter": "nobody"}}, "speculative.drafter"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"grammar": "root ::= ("}, None),
        ({"json_schema": {"type": "strng"}}, None),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs"),
        ({"logit_bias": {"9999999": 1}}, None),
        ({"messages": [{"role": "nobody", "content": ""}]}, None),
        ({"messages": []}, None),
        ({"messages": [{"role": "user", "content": "long " * 500}]}, None),
    ],
)
def test_what_makes_no_sense_is_a_400(openai, client, fields, param):
    options = {"messages": HI, "max_tokens": 3} | fields
    messages = options.pop("messages")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="demo", messages=messages, extra_body=options)
    assert caught.value.message
    if param:
        assert caught.value.param == param


def test_a_prompt_that_is_too_long_says_by_how_much(http):
    body = {"prompt": [5] * 300, "max_tokens": 3}
    error = http.post("/v1/completions", json=body).json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (300, 200)
    assert "context" in error["message"]


def test_null_is_a_field_that_is_left_out(client, http):
    nothing = dict.fromkeys(("temperature", "stop", "seed", "n", "logit_bias", "stream"))
    body = {"prompt": PROMPT, "max_tokens": 3} | nothing
    assert http.post("/v1/completions", json=body).status_code == 200


def test_a_template_gets_its_variables_and_tools(http):
    tools = [{"type": "function", "function": {"name": "clock", "parameters": {}}}]
    body = {"messages": HI, "tools": tools, "chat_template_kwargs": {"mood": "glad"}}
    found = http.post("/apply-template", json=body).json()
    assert found["prompt"] == "<tool>clock</tool>\n<user>hi\nglad<assistant>"
    found = http.post("/apply-template", json=body | {"tool_choice": "none"}).json()
    assert found["prompt"] == "<user>hi\nglad<assistant>"


def test_the_server_has_variables_of_its_own():
    model = mtpcore.load_model("demo")
    model.chat_template = ChatTemplate("{{ enable_thinking }} {{ reasoning_effort }} {{ mood }}")
    own = {"enable_thinking": False, "mood": "glad"}
    with (
        mtpcore.LM(model, n_ctx=100, draft=0, threads=1) as lm,
        serving(lm, ServerSettings(template_options=own)) as url,
    ):

        def seen(**more):
            found = httpx2.post(f"{url}/apply-template", json={"messages": HI} | more)
            return found.json()["prompt"]

        assert seen() == "False  glad"
        assert seen(chat_template_kwargs={"mood": "sad", "enable_thinking": True}) == "True  sad"
        assert seen(reasoning_effort="low") == " low glad"
        assert seen(reasoning_effort="none") == "False  glad"


def test_models_say_how_long_texts_may_be(openai, client):
    (model,) = client.models.list().data
    assert (model.id, model.max_model_len, model.meta["n_ctx"]) == ("demo", 200, 200)
    assert client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_texts_and_tokens(http, lm):
    text = "naïve 漢字"
    tokens = http.post("/tokenize", json={"content": text}).json()["tokens"]
    assert tokens == lm.tokenizer.encode(text, add_special=False, parse_special=True)
    assert http.post("/detokenize", json={"tokens": tokens}).json()["content"] == text
    pieces = http.post("/tokenize", json={"content": text, "with_pieces": True}).json()["tokens"]
    raw = b"".join(
        bytes(one["piece"]) if isinstance(one["piece"], list) else one["piece"].encode()
        for one in pieces
    )
    assert raw.decode() == text


def test_every_event_of_a_stream_is_json(http):
    body = {"messages": HI, "max_tokens": 5, "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as found:
        assert found.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in found.iter_lines() if line]
    assert lines[0].startswith(":")
    assert lines[-1] == "data: [DONE]"
    for line in filter(lambda line: line != ":", lines[:-1]):
        json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({}, "messages[1].role"),
        ({"role": 3}, "messages[1].role"),
        ({"role": "user", "content": 3}, "messages[1].content"),
        ({"role": "user", "content": {"text": "x"}}, "messages[1].content"),
    ],
)
def test_messages_that_are_none(http, message, param):
    for path in ("/v1/chat/completions", "/apply-template"):
        found = http.post(path, json={"messages": [*HI, message]})
        assert (found.status_code, found.json()["error"]["param"]) == (400, param)


def test_an_answer_begins_or_goes_on(http):
    body = {"messages": HI, "add_generation_prompt": True, "max_tokens": 2}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    body |= {"continue_final_message": True}
    assert http.post("/v1/chat/completions", json=body).status_code == 400


def test_what_stands_beside_a_text_in_an_object_is_refused(http):
    prompt = {"prompt_string": "x", "multimodal_data": ["AAAA"]}
    found = http.post("/v1/completions", json={"prompt": prompt})
    assert (found.status_code, found.json()["error"]["param"]) == (400, "prompt")
