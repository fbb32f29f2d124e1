"""Run the tests of llama.cpp's server against this one, and write a table of what came of them.

    python tools/llama_cpp_server_tests.py SOURCE [--suites basic completion ...]

``SOURCE`` is llama.cpp's folder. Its tests start a server for each test, with models that they
download; here each gets one in this process, of the demo model, with the options that both have.
Needs ``requests``, ``filelock`` and the extra ``test``. What is written is
``benchmarks/results/llama_cpp_server_tests.json``; ``tools/tables.py`` shows it.

A test that fails is put down to one of three causes. *Text*: it expects words that its model
writes, or as many tokens as its tokenizer makes; that is read of the line that failed. *Meant*:
what it asks for is refused here, or done otherwise, with a reason in ``MEANT``. *Open*: neither.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from requests.structures import CaseInsensitiveDict

import mtpcore
from mtpcore.gguf import ChatTemplate
from mtpcore.lm import thinking_options
from mtpcore.serving import ServerSettings

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "llama_cpp_server_tests.json"
SUITES = (
    *("basic", "chat_completion", "completion", "compat_anthropic", "compat_oai_responses"),
    *("embedding", "ctx_shift", "ignore_eos", "infill", "slot_save", "speculative", "stream"),
    *("security", "template", "tokenize", "tool_call", "metrics"),
)
TEMPLATE = """{% for tool in tools or [] %}<tool>{{ tool | tojson }}</tool>
{% endfor %}{% for message in messages %}<|{{ message.role }}|>{{ message.content }}
{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
"""The chat template of the demo here, which has none of its own."""
_OF_TEXT = re.compile(
    r"match_regex|re_content|re\.match|in content\b|== n_prompt|n_predicted|"
    r"(prompt|predicted|cache)_n\"?\]? ==|_tokens\"?\]? [=><]|n_saved|n_tokens\b"
)
"""Lines of tests that compare words of their model, or numbers of its tokens."""
_TESTS_OF_TEXT = (
    *("ctx_shift_disabled_long_prompt", "embedding_pooling_none", "embedding_usage_multiple"),
    *("completion_response_fields", "embedding_mixed_input[-False]"),
)
"""Tests of that kind whose lines do not show it: the demo's tokenizer adds no tokens to a text."""
MEANT: dict[str, str] = {
    "multiple_addresses": "one address is listened at",
    "has no attribute 'download'": "needs a model that cannot be downloaded here",
    "gaierror": "needs a model or a picture that cannot be downloaded here",
    "has no option": "needs an option that this server has not",
    "no_ui": "`/` answers clients that are no browsers as Ollama does; `--no-page` is tested here",
    "aliases_and_tags": "a model has one name",
    "test_server_slots": "`/slots` is always there",
    "metrics_disabled": "`/metrics` is always there",
    "__verbose": "there is no verbose answer",
    "verbose_debug": "there is no verbose answer",
    "assert '' is None": "the first event has an empty content, as OpenAI's has, not null",
    "non empty content delta": "the first event has an empty content, as OpenAI's has, not null",
    "== 'Ollama is running'": "`/` answers clients that are no browsers as Ollama does",
    "system_fingerprint": "`system_fingerprint` begins with `mtpcore`, not with a build's `b`",
    "return_progress": "`return_progress` is accepted and changes nothing",
    "prompt_progress": "`return_progress` is accepted and changes nothing",
    "should not include timings": "answers of all APIs have the timings",
    "anthropic_empty_messages": "a conversation has messages",
    "assert 400 == 500": "what a request asks for and is not there is its fault: 400",
    "test_logit_bias": "`logit_bias` is an object, as OpenAI's; lists of pairs are refused",
    "n_probs_post": "`post_sampling_probs` is refused by name",
    "ignore_eos_": "`generation_settings` has no `logit_bias` that was not given",
    "too large": "the error has other words",
    "invalid_chat_completion_req[messages7]": "two answers in a row are a conversation",
    "assert 'content' in {'id': 'cmpl-": "`/completions` is OpenAI's route without `/v1`",
    "sw.js": "the page has no service worker",
    "test_cors_": "`--origin` takes whole origins; headers are others, without credentials",
    "local_media_file": "there are no images",
    "mmproj": "there are no images",
    "multimodal": "there are no images",
    "payload_larger": "there are no images",
    "legacy_token_list": "states have a format of their own",
    "test_stream_": "streams are not kept for clients that come again",
    "llama_telemetry": "events of Responses have no timings but the last",
    "chat_template[": "templates are files' or options' own, not names of built-in ones",
    "test_apply_chat_template": "templates are files' own: there are no built-in ones by name",
    "test_tokenize_with_bos": "the demo has no such token",
    "test_reasoning": "`enable_thinking` is not defined where nobody says it, as in transformers",
    "inside_prompt[fireworks": "the template needs `functions`, which nobody gives; transformers "
    "refuses it, too",
    "prometheus_format": "`n_tokens_max` is the highest count so far, and no total: a gauge",
    "embedding_prompt_is_counted": "`n_decode_total` counts passes that write texts",
}
"""Parts of what failing tests say or are called, and why that is meant."""


class Servers:
    """A plugin of pytest: gives each server of a test a place in this process."""

    def __init__(self) -> None:
        self.outcomes: dict[str, dict[str, Any]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put our servers in place of those of the tests, once their helpers are there."""
        del items
        utils: Any = sys.modules["utils"]
        utils.ServerPreset.load_all = staticmethod(lambda: None)
        utils.ServerProcess.start = _start
        utils.ServerProcess.stop = _stop
        utils.ServerProcess.make_request = _ignoring_case(utils.ServerProcess.make_request)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome of a test."""
        if report.when != "call" and report.outcome == "passed":
            return
        name = report.nodeid.split("test_", 1)[-1]
        found: dict[str, Any] = {"outcome": report.outcome}
        if report.outcome == "failed":
            lines = report.longreprtext.splitlines()
            at = next((i for i, line in enumerate(lines) if line.startswith("E ")), len(lines))
            found["line"] = lines[at - 1].strip() if at else ""
            errors = [line[1:].strip() for line in lines if line.startswith("E ")]
            found["error"] = errors[0][:200] if errors else ""
            found["is_of_text"] = any("match_regex" in one for one in errors)
        self.outcomes[name] = found


def _ignoring_case(make_request: Callable[..., Any]) -> Callable[..., Any]:
    """Let tests look for headers in any spelling, as HTTP has it: they expect capitals."""

    def made(*args: Any, **options: Any) -> Any:
        answer = make_request(*args, **options)
        answer.headers = CaseInsensitiveDict(answer.headers)
        return answer

    return made


def _start(self: Any, timeout_seconds: int = 60) -> None:
    """Serve the demo with the options of a test's server."""
    del timeout_seconds
    self.place = stack = ExitStack()
    self.process = None
    host, self.server_port = stack.enter_context(_serving(self))
    self.server_host = host
    sys.modules["utils"].server_instances.add(self)
    self.ready = True


def _stop(self: Any) -> None:
    """End it."""
    sys.modules["utils"].server_instances.discard(self)
    self.place.close()


@contextmanager
def _serving(asked: Any) -> Iterator[tuple[str, int]]:
    from harness.served import serving

    for name in ("spec_synth_len", "mmproj_url", "lora_files", "models_dir", "server_reranking"):
        if getattr(asked, name):
            pytest.fail(f"this server has no option {name}")
    n_slots = asked.n_slots or 4
    fills = "infill" in (asked.model_alias or "")
    with _model(asked, fills=fills) as model:
        lm = mtpcore.LM(
            model,
            n_ctx=max((asked.n_ctx or 512) // n_slots, 16),
            n_batch=asked.n_batch or 512,
            n_seq_max=n_slots,
            draft=asked.spec_draft_n_max or ("auto" if asked.spec_type else 0),
            threads=1,
        )
        with lm:
            lm._sampling = {**lm.sampling, "temperature": asked.temperature, "seed": asked.seed}
            settings = ServerSettings(
                name=asked.model_alias,
                api_keys=(asked.api_key,) if asked.api_key else (),
                origins=tuple((asked.cors_origins or "*").split(",")),
                pooling=asked.pooling,
                slot_folder=Path(asked.slot_save_path) if asked.slot_save_path else None,
                max_waiting=1000,
                template_options=thinking_options(
                    is_on={"on": True, "off": False}.get(asked.reasoning)
                ),
            )
            with serving(lm, settings) as url:
                host, _, port = url.removeprefix("http://").partition(":")
                yield host, int(port)


@contextmanager
def _model(asked: Any, *, fills: bool) -> Iterator[mtpcore.Model]:
    """Load the demo with the chat template that is asked for."""
    with mtpcore.load_model("demo") as model:
        template = TEMPLATE
        if asked.chat_template_file:
            template = Path(asked.chat_template_file).read_text("utf-8")
        elif asked.chat_template and "{" in asked.chat_template:
            template = asked.chat_template
        model.chat_template = ChatTemplate(template)
        if fills:
            vocabulary = model.tokenizer.vocabulary
            vocabulary.infill.update(fim_pre=300, fim_suf=301, fim_mid=302)
        yield model


def cause_of(name: str, found: dict[str, Any]) -> tuple[str, str]:
    """Return what a failure is put down to, and why."""
    said = f"{name} {found['line']} {found['error']}"
    for part, why in MEANT.items():
        if part in said:
            return "meant", why
    of_text = any(test in name for test in _TESTS_OF_TEXT)
    if of_text or found["is_of_text"] or _OF_TEXT.search(found["line"]):
        return "text", ""
    return "open", found["error"]


def main() -> None:
    """Run the tests, and write what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=SUITES)
    args = parser.parse_args()
    tests = args.source.resolve() / "tools" / "server" / "tests"
    sys.path.insert(0, str(ROOT / "tests"))
    sys.modules.setdefault("wget", ModuleType("wget"))  # by which they would download models
    results = RESULTS.resolve()
    os.chdir(tests)  # they name templates from there
    servers = Servers()
    units = [str(tests / "unit" / f"test_{name}.py") for name in args.suites]
    pytest.main(
        [
            *units,
            "--rootdir",
            str(tests),
            "-c",
            str(tests / "pytest.ini"),
            "-q",
            "--tb=short",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "-m",
            "not slow",
        ],
        plugins=[servers],
    )
    suites: dict[str, Any] = json.loads(results.read_text("utf-8")) if results.exists() else {}
    for name in args.suites:
        suites.pop(name, None)
    for name, found in servers.outcomes.items():
        suite, _, test = name.partition(".py::")
        if suite not in suites:
            suites[suite] = {"passed": 0, "skipped": 0, "text": 0, "meant": {}, "open": {}}
        kept = suites[suite]
        if found["outcome"] != "failed":
            kept[found["outcome"]] += 1
            continue
        cause, why = cause_of(name, found)
        if cause == "text":
            kept["text"] += 1
        else:
            kept[cause][test] = why
    results.write_text(json.dumps(suites, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
