"""The page at ``/``: how it is sent, and, in a real browser, what people do on it."""

import asyncio
import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager

import httpx2
import pytest
from harness.browser import Browser, chromium
from harness.served import serving, serving_app, wait_until
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.responses import JSONResponse, StreamingResponse

import mtpcore
from mtpcore.serving import ServerSettings, build_app

HTML = {"accept": "text/html,application/xhtml+xml"}
HOSTILE = "<img src=x onerror='window.hurt=1'><script>window.hurt=1</script>"
"""What does harm where a text is taken for HTML."""


def test_browsers_get_the_page_and_other_clients_what_they_look_for(http):
    page = http.get("/", headers=HTML)
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["vary"] == http.get("/").headers["vary"] == "accept"
    assert http.get("/").text == "Ollama is running"
    script = http.get("/page.js")
    assert script.headers["content-type"].startswith("text/javascript")
    for found in (page, script):
        again = http.get(found.url, headers=HTML | {"if-none-match": found.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_the_policy_allows_the_styles_of_the_page_and_its_own_script_alone(http):
    page = http.get("/", headers=HTML)
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; ")
    assert "unsafe" not in policy
    (style,) = re.findall(r"<style>(.*?)</style>", page.text, re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy
    assert not re.search(r"\sstyle=|\son[a-z]+=|https?://(?!www\.w3\.org)", page.text)
    assert not re.search(r"innerHTML|https?://(?!www\.w3\.org)", http.get("/page.js").text)


def test_a_server_without_a_page(lm):
    with serving(lm, ServerSettings(page=False)) as url:
        assert httpx2.get(url, headers=HTML).text == "Ollama is running"
        assert httpx2.get(f"{url}/page.js").status_code == 404


def test_the_page_needs_no_key_and_what_it_shows_does(lm):
    with serving(lm, ServerSettings(api_keys=("sesame",))) as url:
        assert httpx2.get(url, headers=HTML).status_code == 200
        assert httpx2.get(f"{url}/page.js").status_code == 200
        for path in ("props", "cross"):
            assert httpx2.get(f"{url}/{path}").status_code == 401


# ---- in a browser --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    path = chromium()
    if path is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    found = Browser(path, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@contextmanager
def opened(browser, url, **size):
    """Open the page, wait until it knows its server; in the end nothing was complained about."""
    with browser.page(**size) as page:
        page.open(url)
        page.wait("document.querySelector('#model').textContent === 'demo'")
        yield page
        assert page.complaints == []


def send(page, text):
    page.evaluate("document.querySelector('#text').focus()")
    page.write(text)
    page.press("Enter")


def finish(page, n=1):
    """Wait until so many answers are there and none is being written."""
    page.wait(
        "!document.body.classList.contains('is-writing')"
        f" && document.querySelectorAll('.answer').length === {n}"
    )


def choose(page, **values):
    """Fill in settings by their names."""
    page.click("#show-settings")
    page.evaluate(
        f"""(() => {{ for (const [name, value] of Object.entries({json.dumps(values)})) {{
            const field = document.querySelector(`#settings [name=${{name}}]`);
            field.value = value;
            field.dispatchEvent(new Event("input", {{ bubbles: true }}));
        }} }})()"""
    )
    page.press("Escape")


class Told:
    """A server whose answers to conversations are told beforehand, and that notes the requests.

    An answer is a response, or a list of deltas, every second one drafted. There may also be
    seconds in it, and in the end an error, or an exception with which the connection ends.
    """

    def __init__(self, lm):
        self.requests, self.answers = [], []
        self._app = build_app(lm, ServerSettings(name="demo"))

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http" or scope["path"] != "/v1/chat/completions":
            await self._app(scope, receive, send)
            return
        message = await receive()
        body = message["body"]
        while message.get("more_body"):
            message = await receive()
            body += message["body"]
        self.requests.append(json.loads(body))
        answer = self.answers.pop(0)
        if isinstance(answer, list):
            answer = StreamingResponse(self._events(answer), media_type="text/event-stream")
        await answer(scope, receive, send)

    async def _events(self, deltas):
        yield ":\n\n"
        for i, delta in enumerate(deltas):
            if isinstance(delta, float):
                await asyncio.sleep(delta)
            elif isinstance(delta, Exception):
                raise delta
            elif "error" in delta:
                yield f"data: {json.dumps(delta)}\n\n"
                return
            else:
                choice = {"index": 0, "delta": delta, "finish_reason": None}
                event = {"choices": [choice], "mtpcore": {"drafted": i % 2 == 1, "tokens": 1}}
                yield f"data: {json.dumps(event)}\n\n"
        yield 'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


@pytest.fixture
def told(lm):
    return Told(lm)


@pytest.fixture
def told_address(told):
    with serving_app(told) as url:
        yield url


def said(*parts):
    return [{"content": part} for part in parts]


def test_the_text_that_streams_is_the_one_of_the_request_with_its_drafts(browser, address, http):
    question = "def read_config(path):"
    asked = {"messages": [{"role": "user", "content": question}], "seed": 5, "max_tokens": 60}
    asked |= {"temperature": 0.7, "speculative": {"draft": 4}, "stream": True}
    lines = http.post("/v1/chat/completions", json=asked).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    pieces = [one for one in events if "mtpcore" in one]
    texts = {
        is_drafted: "".join(
            one["choices"][0]["delta"]["content"]
            for one in pieces
            if one["mtpcore"]["drafted"] in (is_drafted, True)
        )
        for is_drafted in (False, True)
    }
    with opened(browser, address) as page:
        choose(page, seed="5", max_tokens="60", temperature="0.7", drafts="fixed", draft="4")
        send(page, question)
        finish(page)
        name = "'mtpcore.conversation.' + location.hash.slice(1)"
        stored = page.evaluate(f"JSON.parse(localStorage.getItem({name}))")
        answer = stored["messages"][1]
        assert answer["content"] == texts[False]
        assert sum(answer["runs"]) == len(texts[False])
        begins = [sum(answer["runs"][:i]) for i in range(len(answer["runs"]) + 1)]
        drafted = [texts[False][begins[i] : begins[i + 1]] for i in range(1, len(begins) - 1, 2)]
        assert "".join(drafted) == texts[True] != ""
        spans = page.evaluate(
            "[...document.querySelectorAll('.answer .drafted')].map((one) => one.textContent)"
        )
        assert re.sub(r"\s", "", "".join(spans)) == re.sub(r"\s", "", texts[True])
        (line,) = page.text(".figures")
        figures = answer["figures"]
        assert line.startswith(f"{figures['tokens']} tokens")
        rate = round(100 * figures["accepted"] / figures["drafted"])
        assert f"{rate} % of {figures['drafted']} drafts accepted" in line


def test_drafts_can_be_told_apart_without_colours(browser, told, told_address):
    told.answers.append(said("plain ", "guessed", " plain"))
    with opened(browser, told_address) as page:
        send(page, "x")
        finish(page)
        assert page.text(".answer .drafted") == ["guessed"]
        shadow = "getComputedStyle(document.querySelector('{}')).boxShadow"
        line = page.evaluate(shadow.format(".answer .drafted"))
        assert "inset" in line
        assert page.evaluate(shadow.format("#legend .drafted")) == line
        page.click("#toggle-drafts")
        assert page.evaluate(shadow.format(".answer .drafted")) == "none"


@pytest.fixture
def slow(model):
    """An LM of one sequence whose rounds take a while."""
    with mtpcore.LM(model, n_ctx=200, n_seq_max=1, threads=1, draft=0) as lm:
        step, pause = lm.generator.step, threading.Event()

        def slowly():
            pause.wait(0.03)
            return step()

        lm.generator.step = slowly
        yield lm


@pytest.mark.parametrize("how", ["Escape", "button"])
def test_stop_ends_the_text_and_keeps_what_there_is(browser, slow, how):
    with serving(slow, ServerSettings(name="demo")) as url, opened(browser, url) as page:
        send(page, "def f(x):")
        page.wait("document.querySelector('.answer .said').textContent.length > 5")
        page.wait("document.querySelector('#rates').textContent.includes('tokens/s')")
        if how == "button":
            page.click("#stop")
        else:
            page.press("Escape")
        finish(page)
        assert "stopped" in page.text(".figures")[0]
        assert page.evaluate("document.querySelector('.answer .said').textContent.length") > 5
        page.wait("document.activeElement.id === 'text'")
        wait_until(lambda: slow.n_running == 0)


def test_a_full_queue_is_said_and_asking_again_helps(browser, slow):
    with serving(slow, ServerSettings(name="demo", max_waiting=0)) as url:
        asked = {"prompt": "x", "max_tokens": 180, "ignore_eos": True, "stream": True}
        with opened_with_refusals(browser, url) as page:
            with httpx2.stream("POST", f"{url}/v1/completions", json=asked) as other:
                lines = other.iter_lines()
                next(lines)
                send(page, "hello")
                finish(page)
                (error,) = page.text("[role=alert]:not([hidden])")
                assert "busy" in error
                assert "Try again in 1 s" in error
            wait_until(lambda: slow.n_running == 0)
            page.click(".error button")
            page.wait("document.querySelector('.answer .said').textContent.length > 3")
            page.press("Escape")
            finish(page)
            assert page.text("[role=alert]:not([hidden])") == []


@contextmanager
def opened_with_refusals(browser, url):
    """As ``opened``, where the browser may complain of requests that fail."""
    with browser.page() as page:
        page.open(url)
        page.wait("document.querySelector('#model').textContent === 'demo'")
        yield page
        assert all("Failed to load resource" in one for one in page.complaints)


def test_a_server_that_is_gone_is_said(browser, lm):
    with browser.page() as page:
        with serving(lm, ServerSettings(name="demo")) as url:
            page.open(url)
            page.wait("document.querySelector('#model').textContent === 'demo'")
        send(page, "hello")
        finish(page)
        assert "The server does not answer." in page.text("[role=alert]:not([hidden])")[0]
        assert page.text(".user .said") == ["hello"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([*said("half"), {"error": {"message": "the model fell over"}}], "the model fell over"),
        ([*said("half"), 0.5, OSError()], "The connection ended before the answer did."),
        (JSONResponse({"error": {"message": "no such thing"}}, 400), "no such thing"),
        (JSONResponse(["?"], 500), "The server answered with status 500."),
    ],
)
def test_errors_are_said_and_what_came_before_stays(browser, told, told_address, answer, message):
    told.answers.append(answer)
    with opened_with_refusals(browser, told_address) as page:
        send(page, "hello")
        finish(page)
        assert page.text("[role=alert]:not([hidden])")[0].startswith(message)
        assert page.text(".answer .said") == ["half" if isinstance(answer, list) else ""]


def test_regenerate_asks_the_same_and_edit_asks_anew(browser, told, told_address):
    told.answers += [said("one"), said("two"), said("three"), said("four")]
    with opened(browser, told_address) as page:
        send(page, "first")
        finish(page)
        page.click("[aria-label=Regenerate]")
        page.wait("document.querySelector('.answer .said').textContent === 'two'")
        finish(page)
        assert told.requests[0] == told.requests[1]
        send(page, "second")
        finish(page, 2)
        assert [one["content"] for one in told.requests[2]["messages"]] == [
            "first",
            "two",
            "second",
        ]
        page.click("[aria-label=Edit]")
        page.wait("document.activeElement.value === 'first'")
        page.evaluate("document.activeElement.select()")
        page.write("changed")
        page.press("Enter")
        finish(page)
        assert [one["content"] for one in told.requests[3]["messages"]] == ["changed"]
        assert page.text(".answer .said") == ["four"]
        page.click("[aria-label=Edit]")
        page.write(" no")
        page.press("Escape")
        assert page.text(".user .said") == ["changed"]
        assert len(told.requests) == 4


def test_conversations_are_there_after_a_reload_and_can_be_renamed_and_deleted(
    browser, told, told_address
):
    told.answers += [said("a ", "guess"), said("other")]
    with opened(browser, told_address) as page:
        send(page, "What is it?")
        finish(page)
        page.click("#begin")
        send(page, "Another")
        finish(page)
        page.reload()
        page.wait("document.querySelectorAll('#list li').length === 2")
        assert page.text(".answer .said") == ["other"]
        page.click("#list li:nth-child(2) .open")
        page.wait("document.querySelector('.answer .said').textContent === 'a guess'")
        assert page.text(".answer .drafted") == ["guess"]
        page.click("#list li.is-open [aria-label^=Rename]")
        page.write("Named")
        page.press("Enter")
        page.wait("document.querySelector('#list .is-open .open').textContent === 'Named'")
        page.click("#list li.is-open [aria-label^=Delete]")
        page.wait("document.querySelectorAll('#list li').length === 1")
        assert page.text(".answer") == []
        page.click("#notice-act")
        page.wait("document.querySelectorAll('#list li').length === 2")
        assert page.text(".answer .said") == ["a guess"]
        assert sorted(page.text("#list .open")) == ["Another", "Named"]


def test_settings_reach_the_request_and_are_kept(browser, told, told_address):
    numbers = {
        "temperature": 0.25,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "seed": 11,
        "max_tokens": 33,
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    told.answers += [said("x") for _ in range(4)]
    with opened(browser, told_address) as page:
        send(page, "plain")
        finish(page)
        texts = {name: str(value) for name, value in numbers.items()}
        texts |= {"system": "Be brief.", "stop": "one\ntwo", "thinking": "off", "drafts": "fixed"}
        texts |= {"draft": "3", "drafter": "lookup", "p_min": "0.5", "tools": json.dumps([tool])}
        texts |= {"others": '{"ignore_eos": true, "top_k": 8, "n": 2, "stream": false}'}
        choose(page, **texts)
        page.reload()
        page.wait("document.querySelector('#model').textContent === 'demo'")
        for n, drafts in enumerate(("fixed", "auto", "off"), 2):
            choose(page, drafts=drafts)
            send(page, "more")
            finish(page, n)
    plain, *others = told.requests
    assert plain == {"stream": True, "timings_per_token": True, "messages": plain["messages"]}
    drafts = [one.pop("speculative") for one in others]
    assert drafts == [
        {"draft": 3, "drafter": "lookup", "p_min": 0.5},
        {"draft": "auto", "drafter": "lookup", "p_min": 0.5},
        False,
    ]
    for request in others:
        assert request["messages"][0] == {"role": "system", "content": "Be brief."}
        assert request["stop"] == ["one", "two"]
        assert request["tools"] == [tool]
        assert request["chat_template_kwargs"] == {"enable_thinking": False}
        assert {name: request[name] for name in numbers} == numbers | {"top_k": 8}
        assert (request["ignore_eos"], request["stream"], request.get("n")) == (True, True, None)


@pytest.mark.parametrize("wrong", [{"tools": "{}"}, {"tools": "[" * 9}, {"others": "[1]"}])
def test_settings_that_are_no_json_are_said(browser, told, told_address, wrong):
    told.answers.append(said("fine"))
    with opened(browser, told_address) as page:
        choose(page, **wrong)
        send(page, "hello")
        finish(page)
        assert "in the settings are no JSON" in page.text("[role=alert]:not([hidden])")[0]
        assert told.requests == []
        choose(page, **dict.fromkeys(wrong, ""))
        page.click(".error button")
        page.wait("document.querySelector('.answer .said').textContent === 'fine'")


def test_every_setting_is_one_that_the_server_takes(browser, address):
    with opened(browser, address) as page:
        choose(
            page,
            **{"temperature": "0.5", "top_p": "0.9", "top_k": "5", "min_p": "0.1", "seed": "3"},
            **{"repetition_penalty": "1.1", "frequency_penalty": "0.1", "max_tokens": "5"},
            **{"presence_penalty": "0.1", "stop": "~~", "system": "s", "thinking": "on"},
            **{"drafts": "auto", "drafter": "glm_nextn", "p_min": "0.1"},
        )
        send(page, "hello")
        finish(page)
        assert page.text("[role=alert]:not([hidden])") == []
        assert page.text(".figures")[0].startswith("5 tokens")


def test_text_of_a_model_stays_text_wherever_it_is_shown(browser, told, told_address):
    call = {"id": HOSTILE, "function": {"name": HOSTILE, "arguments": HOSTILE}}
    parts = said(
        HOSTILE, f"\n\n# {HOSTILE}\n\n```{HOSTILE}\n{HOSTILE}\n```\n\n| {HOSTILE} | b |\n|-|-|\n"
    )
    told.answers += [
        [{"reasoning_content": HOSTILE}, *parts, {"tool_calls": [call]}],
        JSONResponse({"error": {"message": HOSTILE}}, 400),
    ]
    with opened_with_refusals(browser, told_address) as page:
        send(page, HOSTILE)
        finish(page)
        page.evaluate("document.querySelector('.reasoning').open = true")
        send(page, HOSTILE)
        finish(page, 2)
        found = (
            "document.querySelectorAll('#messages :is(img, script), #list :is(img, script)').length"
        )
        assert page.evaluate(found) == 0
        for place in (
            ".user .said",
            ".answer h3",
            ".code figcaption",
            ".code pre",
            ".answer th",
            ".reasoning",
            ".call b",
            ".call pre",
            "[role=alert]",
            "#list .open",
        ):
            assert any(HOSTILE in one for one in page.text(place)), place
        page.reload()
        page.wait("document.querySelectorAll('.answer').length === 2")
        assert page.evaluate(found) == 0
        assert page.evaluate("window.hurt") is None


def test_the_browser_refuses_what_the_policy_forbids(browser, address):
    with browser.page() as page:
        page.open(address)
        page.wait("document.querySelector('#model').textContent === 'demo'")
        refused = (
            "(() => {{ try {{ {}; return 'done'; }} catch (error) {{ return error.name; }} }})()"
        )
        assert page.evaluate(refused.format("document.body.innerHTML = '<p>'")) == "TypeError"
        assert page.evaluate("fetch('http://127.0.0.1:9/').then(() => 1, () => 'no')") == "no"
        page.evaluate("document.body.append(Object.assign(new Image(), {src: '/page.js?'}))")
        page.wait("true")
        assert any("Content Security Policy" in one for one in page.complaints)


def test_calls_of_tools_are_shown_and_their_results_sent(browser, told, told_address):
    call = {"id": "call_1", "function": {"name": "weather", "arguments": '{"place": "Bern"}'}}
    told.answers += [[*said("Let me see."), {"tool_calls": [call]}], said("Rain.")]
    with opened(browser, told_address) as page:
        send(page, "Weather in Bern?")
        finish(page)
        assert page.text(".call b") == ["weather"]
        assert json.loads(page.text(".call pre")[0]) == {"place": "Bern"}
        page.click(".call textarea")
        page.write("it rains")
        page.evaluate(
            "[...document.querySelectorAll('.plain')]"
            ".find((one) => one.textContent === 'Send results').click()"
        )
        finish(page, 2)
    sent = told.requests[1]["messages"]
    assert [one["role"] for one in sent] == ["user", "assistant", "tool"]
    assert sent[1]["tool_calls"][0]["function"] == call["function"]
    assert (sent[2]["tool_call_id"], sent[2]["content"]) == ("call_1", "it rains")


def test_reasoning_is_folded(browser, told, told_address):
    told.answers.append([{"reasoning_content": "Hm. "}, {"reasoning_content": "Yes."}, *said("42")])
    with opened(browser, told_address) as page:
        send(page, "x")
        finish(page)
        assert page.evaluate("document.querySelector('.reasoning').open") is False
        page.click(".reasoning summary")
        assert page.text(".reasoning div") == ["Hm. Yes."]
        assert page.text(".reasoning .drafted") == ["Yes."]
        assert page.text(".answer .said") == ["42"]


def test_it_is_usable_by_keyboard_alone(browser, told, told_address):
    told.answers += [said("one"), said("two")]
    with opened(browser, told_address) as page:
        page.wait("document.activeElement.id === 'text'")
        page.write("first")
        page.press("Enter", shift=True)
        page.write("second")
        page.press("Enter")
        finish(page)
        assert told.requests[0]["messages"] == [{"role": "user", "content": "first\nsecond"}]
        names = []
        for _ in range(40):
            page.press("Tab", shift=True)
            names.append(page.evaluate("document.activeElement.ariaLabel"))
            if names[-1] == "Regenerate":
                break
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert names[-1] == "Regenerate"
        assert page.evaluate(outline) == "solid"
        page.press("Enter")
        page.wait("document.querySelector('.answer .said').textContent === 'two'")
        finish(page)
        page.evaluate("document.querySelector('#show-settings').focus()")
        page.press("Enter")
        page.wait("document.querySelector('#settings').open")
        page.press("Escape")
        page.wait("!document.querySelector('#settings').open")
        assert page.evaluate("document.activeElement.id") == "show-settings"
        seen = set()
        for _ in range(40):
            page.press("Tab")
            seen.add(page.evaluate("document.activeElement.id || document.activeElement.ariaLabel"))
            assert page.evaluate(
                f"document.activeElement === document.body || {outline} !== 'none'"
                " || document.activeElement.id === 'text'"
            )
        assert {"begin", "text", "send", "show-flow", "toggle-drafts", "close-flow"} <= seen


def test_everything_has_a_name_for_screen_readers(browser, told, told_address):
    told.answers.append([{"reasoning_content": "Hm."}, *said("```python\nx\n```")])
    with opened(browser, told_address) as page:
        send(page, "x")
        finish(page)
        page.click("#show-settings")
        page.wait("document.querySelector('#settings').open")
        page.press("Escape")
        tree = page.send("Accessibility.getFullAXTree")["nodes"]
        roles = {}
        for node in tree:
            if not node["ignored"]:
                name = node.get("name", {}).get("value", "")
                roles.setdefault(node["role"]["value"], []).append(name)
        for role in ("button", "textbox", "navigation", "region", "complementary", "article"):
            assert roles[role], role
            assert all(roles[role]), (role, roles[role])
        assert len(roles["main"]) == len(roles["navigation"]) == 1
        assert page.evaluate("document.querySelector('.answer .said').ariaLive") == "polite"
        assert page.evaluate("document.querySelector('.answer .said').ariaBusy") == "false"
        assert page.text("#status") == ["The answer is finished"]


WIDE = f"""# {"wide" * 40}

{"x" * 300} `{"y" * 200}`

```python
{"z = 1; " * 60}
```

|{"column |" * 20}
|{"-|" * 20}
|{"cell |" * 20}
"""
OVERFLOWS = """[...document.querySelectorAll('html, body, #log, #flow, #list, .fields')]
    .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.id || one.tagName)"""
OUTSIDE = """[...document.querySelectorAll('header *, #composer *, .acts *, .said > *, .call *')]
    .filter((one) => one.checkVisibility() && one.className !== 'unseen')
    .filter((one) => one.getBoundingClientRect().right > 360.5 && !one.closest('.code, .scrolls'))
    .map((one) => one.id || one.className || one.tagName)"""


def test_nothing_scrolls_sideways_at_360_pixels(browser, told, told_address):
    call = {"id": "1", "function": {"name": "n" * 90, "arguments": json.dumps({"a": "b" * 300})}}
    told.answers.append([{"reasoning_content": "r" * 300}, *said(WIDE), {"tool_calls": [call]}])
    with opened(browser, told_address, width=360, height=740) as page:
        page.wait("document.querySelector('#empty').checkVisibility()")
        assert page.evaluate(OVERFLOWS) == []
        send(page, "u" * 300)
        finish(page)
        page.evaluate("document.querySelector('.reasoning').open = true")
        assert page.evaluate(OVERFLOWS) == []
        assert page.evaluate("innerWidth") == 360
        assert page.evaluate(OUTSIDE) == []
        page.click("#show-list")
        page.wait("document.querySelector('#begin').getBoundingClientRect().left >= 0")
        page.wait("document.activeElement.id === 'begin'")
        assert page.evaluate("document.querySelector('main').inert")
        assert page.evaluate(OVERFLOWS) == []
        page.press("Escape")
        page.wait(
            "getComputedStyle(document.querySelector('#conversations')).visibility === 'hidden'"
        )
        page.click("#show-flow")
        page.wait("document.querySelector('#drawing rect')")
        assert page.evaluate(OVERFLOWS) == []
        page.press("Escape")
        page.click("#show-settings")
        page.wait("document.querySelector('#settings').open")
        assert page.evaluate(OVERFLOWS) == []


CONTRAST = """(([front, back]) => {
    const light = (colour) => {
        const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((one) => one / 255)
            .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    const [low, high] = [light(front), light(back)].sort((one, other) => one - other);
    return (high + 0.05) / (low + 0.05);
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast_in_light_and_dark(browser, told, told_address, scheme):
    told.answers.append([*said("plain ", "guessed"), {"error": {"message": "broken"}}])
    with browser.page() as page:
        page.prefer(color_scheme=scheme)
        page.open(told_address)
        page.wait("document.querySelector('#model').textContent === 'demo'")
        send(page, "x")
        finish(page)
        style = "getComputedStyle(document.querySelector('{}')).{}"
        ground = style.format("body", "backgroundColor")
        is_dark = page.evaluate(f"{CONTRAST}([{ground}, 'rgb(0, 0, 0)'])") < 2
        assert is_dark == (scheme == "dark")
        own = "backgroundColor"
        for place, behind in (
            ("body", ground),
            ("#rates", ground),
            (".acts button", ground),
            ("#foot", ground),
            (".answer .drafted", style.format(".answer .drafted", own)),
            (".user .said", style.format(".user .said", own)),
            (".error", style.format(".error", own)),
            ("#send", style.format("#send", own)),
        ):
            found = page.evaluate(f"{CONTRAST}([{style.format(place, 'color')}, {behind}])")
            assert found >= 4.5, (place, found)


@pytest.mark.parametrize("preference", ["no-preference", "reduce"])
def test_nothing_moves_for_those_who_prefer_that(browser, told, told_address, preference):
    told.answers.append([60.0])
    with opened(browser, told_address) as page:
        page.prefer(reduced_motion=preference)
        send(page, "hello")
        page.wait("document.querySelector('.waits')")
        names = page.evaluate("document.getAnimations().map((one) => one.animationName)")
        assert ("breathe" in names) == (preference == "no-preference")
        assert names == [] or preference == "no-preference"
        page.press("Escape")
        finish(page)


def test_the_page_asks_for_the_key_that_the_server_wants(browser, lm):
    with (
        serving(lm, ServerSettings(name="demo", api_keys=("sesame",))) as url,
        browser.page() as page,
    ):
        page.open(url)
        for key in ("wrong", "sesame"):
            page.wait("document.querySelector('#key').open")
            (note,) = page.text("#key-note")
            assert note.startswith("This key is wrong.") == (key == "sesame")
            page.write(key)
            page.press("Enter")
            page.wait(f"sessionStorage.getItem('mtpcore.key') === '{key}'")
        page.wait("document.querySelector('#model').textContent === 'demo'")
        choose(page, max_tokens="4")
        send(page, "hello")
        finish(page)
        assert page.text("[role=alert]:not([hidden])") == []


def test_the_drawing_says_what_flows(browser, address, lm):
    with opened(browser, address) as page:
        choose(page, max_tokens="30", drafts="fixed", draft="3")
        send(page, "def read_config(path):")
        finish(page)
        tokens = f"{lm.generator.stats.tokens:,} tokens so far"
        page.wait(f"document.querySelector('#drawing').textContent.includes('{tokens}')")
        texts = page.text("#drawing text")
        assert "llm, the target" in texts
        assert "drafter glm_nextn, chain" in texts
        assert "reads llm.hidden" in texts
        stats = lm.generator.stats
        assert page.evaluate("document.querySelectorAll('#bars li').length") == len(
            stats.accepted_per_position
        )
        label = page.evaluate("document.querySelector('#drawing').getAttribute('aria-label')")
        assert "drafter glm_nextn" in label


def test_a_file_without_a_template_is_continued(browser):
    with (
        mtpcore.LM("demo", n_ctx=200, n_seq_max=1, threads=1) as lm,
        serving(lm, ServerSettings(name="demo")) as url,
        opened(browser, url) as page,
    ):
        choose(page, seed="3", max_tokens="20")
        send(page, "def f(x):")
        finish(page)
        text = lm.generate("def f(x):", seed=3, max_tokens=20).text
        assert page.evaluate("document.querySelector('.answer .said').textContent") == text


# ---- Markdown ------------------------------------------------------------------------------------

SHOW = """async (parts) => {{
    const {{ MarkdownView }} = await import("/page.js");
    const shown = (pieces) => {{
        const root = document.createElement("div");
        const view = new MarkdownView(root);
        let text = "";
        for (const piece of pieces) {{
            text += piece;
            view.show(text, []);
        }}
        const found = document.createElement("div");
        found.append(root);
        return found.innerHTML;
    }};
    return [shown(parts), shown([parts.join("")])];
}}"""


@pytest.fixture(scope="module")
def markdown(browser, address):
    with browser.page() as page:
        page.open(address)

        def show(*parts):
            grown, whole = page.evaluate(f"({SHOW.format()})({json.dumps(parts)})")
            assert grown == whole
            return re.sub(r"<svg.*?</svg>", "", whole).removeprefix("<div>").removesuffix("</div>")

        yield show


@pytest.mark.parametrize(
    ("source", "html"),
    [
        (
            "a *b* **c** `d*e*` ~~f~~",
            "<p>a <em>b</em> <strong>c</strong> <code>d*e*</code> <del>f</del></p>",
        ),
        ("**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"),
        ("2 * 3 * 4 and snake_case_name", "<p>2 * 3 * 4 and snake_case_name</p>"),
        (r"\*no\*", "<p>*no*</p>"),
        ("*open", "<p>*open</p>"),
        ("# T #\n## C#", "<h3>T</h3><h4>C#</h4>"),
        ("# T\ntext\n\n## U", "<h3>T</h3><p>text</p><h4>U</h4>"),
        ("- a\n- b\n  - c\n\ntext", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><p>text</p>"),
        ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
        ("> a\n> b", "<blockquote><p>a\nb</p></blockquote>"),
        ("a\n\n---\nb", "<p>a</p><hr><p>b</p>"),
        ("[text](http://x)", "<p>[text](http://x)</p>"),
    ],
)
def test_markdown(markdown, source, html):
    assert markdown(*source) == html


def test_code_and_tables(markdown):
    shown = markdown("```py\na <b>\n\n*c*\n```\n| a | *b* |\n|---|---|\n| 1 | 2 |")
    assert 'role="group" aria-label="Code"><code>a &lt;b&gt;\n\n*c*</code></pre>' in shown
    assert "<thead><tr><th>a</th><th><em>b</em></th></tr></thead>" in shown
    assert "<tbody><tr><td>1</td><td>2</td></tr></tbody>" in shown


LONG = 100_000


@pytest.mark.parametrize(
    "text",
    [
        "# " + " " * LONG + "x",
        "# " + "#" * LONG + "x",
        "a|\n|-" + " " * LONG + "x",
        "-" * LONG + "x",
        "*a " * LONG,
        "**a*_b`" * (LONG // 7),
        "> " * LONG + "x",
        "- " * LONG + "x",
        "`" * LONG + "x",
        "\n".join("  " * i + "- a" for i in range(300)),
        "|a" * LONG + "|\n" + "|-" * LONG + "|",
    ],
    ids=range(11),
)
def test_no_text_takes_time_that_grows_faster_than_it(markdown, text):
    """One that did would take longer than the browser may be silent."""
    assert re.sub(r"<[^>]*>", "", markdown(text))


PIECES = st.lists(
    st.sampled_from(
        [
            "a",
            "bc",
            " ",
            "  ",
            "\n",
            "\n\n",
            "*",
            "**",
            "_",
            "`",
            "```",
            "~~",
            "- ",
            "1. ",
            "> ",
            "# ",
            "|",
            "|-|-|",
            "\\",
            "---",
            "é",
            "<b>",
        ]
    ),
    max_size=30,
)


@given(PIECES)
@settings(deadline=None)
def test_text_that_grows_is_shown_as_if_it_came_at_once_and_no_letter_is_lost(markdown, pieces):
    shown = markdown(*pieces)
    text = re.sub(r"<button.*?</button>", "", shown)
    text = re.sub(r"<figcaption>text", "", text)
    letters = re.sub(r"<[^>]*>|&[a-z]+;", "", text)
    assert re.sub(r"[^a-cé]", "", letters) == re.sub(r"[^a-cé]", "", "".join(pieces))
