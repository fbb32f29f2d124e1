"""Text that grows, colours, numbers."""

import io

import pytest

from mtpcore.cli.terminal import LiveText, harmless, spell_bytes, uses_colour
from mtpcore.decoding import Request, RequestOptions
from mtpcore.decoding.options import complete_options
from mtpcore.sampling import Sampling


class Terminal(io.StringIO):
    def isatty(self):
        return True


def request(tokenizer=None, **options):
    own = RequestOptions(sampling=Sampling.greedy(), draft=0, draft_sampler="coupled", p_min=0.0)
    return Request([1], complete_options({"max_tokens": 4, **options}, own), tokenizer=tokenizer)


def test_without_a_tokenizer_ids_are_written():
    one, out = request(), io.StringIO()
    live = LiveText(one, None, out, False)
    one.take(one.advance([5], 0))
    live.update()
    one.take(one.advance([77], 1))
    live.update()
    live.update()
    live.end()
    assert out.getvalue() == "5 77 \n"


class Letters:
    """Token n is the n-th letter, drafted or not; 0 is a control character."""

    end_tokens, suppressed, special_texts = frozenset(), (), ()

    def stream(self, special=False, start=False):
        return self

    def push(self, token):
        return "\x1b" if token == 0 else chr(96 + token)

    def flush(self):
        return ""


def test_text_that_a_stop_string_may_take_back_is_held():
    one, out = request(tokenizer=Letters(), stop=("cd",), max_tokens=9), io.StringIO()
    live = LiveText(one, Letters(), out, True)
    seen = []
    for token in (1, 3, 2, 3, 4):
        one.take(one.advance([token], int(token == 3)))
        live.update()
        seen.append(out.getvalue())
    green = "\x1b[32mc\x1b[0m"
    assert seen == ["a", "a", f"a{green}b", f"a{green}b", f"a{green}b"]
    assert one.finish_reason == "stop"


@pytest.mark.parametrize(("out", "written"), [(io.StringIO, "a\x1b"), (Terminal, "a\ufffd")])
def test_a_model_does_not_steer_the_terminal(out, written):
    one, out = request(tokenizer=Letters()), out()
    one.take(one.advance([1, 0], 0))
    LiveText(one, Letters(), out, False).update()
    assert out.getvalue() == written


def test_harmless_keeps_lines_and_tabs():
    assert harmless("a\tb\nc\x1b[0m\x9b\x07é") == "a\tb\nc\ufffd[0m\ufffd\ufffdé"


@pytest.mark.parametrize(
    ("environment", "stream", "coloured"),
    [
        ({}, Terminal, True),
        ({}, io.StringIO, False),
        ({"NO_COLOR": "1"}, Terminal, False),
        ({"NO_COLOR": ""}, Terminal, True),
        ({"TERM": "dumb"}, Terminal, False),
    ],
)
def test_when_colours_are_used(monkeypatch, environment, stream, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert uses_colour("auto", stream()) == coloured
    assert uses_colour("always", stream())
    assert not uses_colour("never", stream())


@pytest.mark.parametrize(
    ("n", "spelled"), [(7, "7 B"), (1234, "1.2 kB"), (3355168, "3.4 MB"), (5e12, "5000.0 GB")]
)
def test_sizes(n, spelled):
    assert spell_bytes(n) == spelled
