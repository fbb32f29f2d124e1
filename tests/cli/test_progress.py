"""Bars on terminals, and lines elsewhere."""

import io
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

import mtpcore
from mtpcore.cli import progress as module
from mtpcore.cli.progress import count_bytes, progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def said():
    """The lines that are said."""
    lines, log, handler = [], logging.getLogger("mtpcore.cli"), logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    log.addHandler(handler)
    yield lines
    log.removeHandler(handler)


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("unit", "count", "shown"),
    [
        (
            "tokens",
            (250.5, 1000),
            r"reading: +25%\|.*\| 250/1000 tokens \[.*<.*, +[\d.]+ tokens/s\]",
        ),
        ("bytes", (2.5e6, 1e7), r"reading: +25%\|.*\| 2\.50M/10\.0MB \[.*, +[\d.]+[kM]?B/s\]"),
    ],
)
def test_a_terminal_shows_a_bar(monkeypatch, said, unit, count, shown):
    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(module, "_DELAY", 0.0)
    with progress("reading", lambda: count, unit):
        wait_for(lambda: re.search(shown, err.getvalue()))
    assert re.search(shown, err.getvalue())
    assert err.getvalue().endswith("\r")  # nothing stays of it
    assert said == []


@pytest.mark.parametrize(
    ("unit", "count", "shown"),
    [
        ("tokens", (1500.5, 8000), r"reading: 1,500 of 8,000 tokens, [\d,]+\.\d tokens/s"),
        ("tokens", (1, 1e9), r"reading: 1 of 1,000,000,000 tokens, .* tokens/s, [\d,]+ min left"),
        ("bytes", (2.5e6, 1e7), r"reading: 2\.5 MB of 10\.0 MB, [\d.]+ .?B/s"),
    ],
)
def test_elsewhere_there_is_a_line_now_and_then(monkeypatch, said, unit, count, shown):
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(module, "_PAUSE", 0.01)
    with progress("reading", lambda: count, unit):
        wait_for(lambda: len(said) > 1)
    assert len(said) > 1
    assert all(re.fullmatch(shown, line) for line in said)
    assert err.getvalue() == ""


def test_progress_never_goes_back(monkeypatch, said):
    """Between two batches the running one's share is gone before the other is counted."""
    counts = iter([(100, 200), (60, 200), (300, 200)])
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(module, "_PAUSE", 0.01)
    with progress("reading", lambda: next(counts, (200, 200))):
        wait_for(lambda: len(said) > 2)
    assert [line.split()[1] for line in said[:3]] == ["100", "100", "200"]


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_short_work_shows_nothing(monkeypatch, said, stream):
    err = stream()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(module, "_DELAY", 60.0)  # this thread may be kept waiting, too
    monkeypatch.setattr(module, "_PAUSE", 60.0)
    with progress("reading", lambda: (10, 10)):
        pass
    assert (err.getvalue(), said) == ("", [])


def test_quiet_work_shows_nothing():
    """Nobody even asks how far it is."""
    log = logging.getLogger("mtpcore.cli")
    before, level = threading.active_count(), log.level
    log.setLevel(logging.WARNING)
    with progress("reading", lambda: (10, 10)):
        assert threading.active_count() == before
    log.setLevel(level)


def test_bytes_are_counted_by_who_writes(monkeypatch, said):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(module, "_PAUSE", 0.01)
    with count_bytes("writing") as report:
        report(1500, 2000)
        wait_for(lambda: said and said[-1].startswith("writing: 1.5 kB of 2.0 kB"))
    assert said[-1].startswith("writing: 1.5 kB of 2.0 kB")


PROGRAM = """
import sys, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from mtpcore.cli import main, progress
progress._DELAY = progress._REDRAWN = progress._PAUSE = 0.01
sys.exit(main())
"""


def start_on_terminal(*words, stdin=None, stdout=subprocess.PIPE):
    """Start a command whose standard error is a terminal; return it, and where that is read."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdin=stdin, stdout=stdout or theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    return process, ours


def read_all(terminal):
    """Return what is written to a terminal until nobody is there."""
    seen = b""
    with suppress(OSError):  # the other end has gone
        while part := os.read(terminal, 4096):
            seen += part
    os.close(terminal)
    return seen.decode(errors="replace")


def long_prompt(n):
    return ("--prompt-tokens", ",".join(str(i % 1000) for i in range(n)), "-n", "1", "--json")


LONG = long_prompt(2000)


@pytest.mark.parametrize("n_batch", [256, 2000])
def test_a_long_prompt_has_a_bar(n_batch):
    """Also where it is read in one batch: the bar moves inside it."""
    process, said = start_on_terminal("run", "demo", *LONG, "-t", "1", "-b", str(n_batch))
    err, out = read_all(said), process.communicate(timeout=60)[0]
    assert process.returncode == 0, err
    assert len(json.loads(out)["tokens"]) == 1
    shown = [int(n) for n in re.findall(r"reading the prompt: .*?\| (\d+)/2000 tokens \[", err)]
    assert len([n for n in shown if 0 < n < 2000]) > 3
    assert shown == sorted(shown)
    assert "prompt 2,000 tokens at " in err


def test_a_long_prompt_has_lines_elsewhere():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "run", "demo", *LONG, "-t", "1"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    found = re.findall(
        r"^mtpcore: reading the prompt: ([\d,]+) of 2,000 tokens, ", done.stderr, re.M
    )
    assert len(found) > 3


def test_a_prompt_is_interrupted_in_the_middle_of_a_batch():
    """The batch does not count as read, and there is a report all the same."""
    words = ("run", "demo", *long_prompt(6000), "-t", "1", "-b", "6000")
    for _ in range(5):  # a busy machine may come too late
        process, said = start_on_terminal(*words)
        seen = b""
        while not re.search(rb"\| [1-9]\d*/6000 tokens", seen):
            seen += os.read(said, 4096)
        process.send_signal(signal.SIGINT)
        report = seen.decode(errors="replace") + read_all(said)
        out = process.communicate(timeout=60)[0]
        assert (process.returncode, "Traceback" in report) == (130, False), report
        if "interrupted: read 0 of 6,000 prompt tokens" in report:
            break
    assert "interrupted: read 0 of 6,000 prompt tokens\r\nmtpcore: prompt 0 tokens; " in report
    found = json.loads(out)
    assert (found["finish_reason"], found["stats"]["prefill_tokens"]) == ("cancelled", 0)


TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
CHAT = ("-t", "1", "-n", "4", "--temp", "0", "-c", "16000", "-b", "256", "--color", "never")
TURNS = [" ".join(words * 800) + "\n" for words in (["read", "this"], ["now", "that", "too"])]


@pytest.fixture(scope="module")
def talker(write_part, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "talker.gguf"
    return write_part(path, lambda name: True, **{"tokenizer.chat_template": TEMPLATE})


@pytest.fixture(scope="module")
def answers(talker):
    """What the model answers in each of the turns."""
    messages, found = [], []
    with mtpcore.LM(talker, n_ctx=16000, threads=1) as lm:
        for turn in TURNS:
            messages.append({"role": "user", "content": turn.strip()})
            found.append(lm.chat(messages, max_tokens=4, temperature=0))
            messages.append({"role": "assistant", "content": found[-1].text})
    return found


def count_new(answer):
    """Return how many tokens were read for an answer."""
    return answer.stats.prompt_tokens - answer.stats.cached_tokens


@pytest.fixture
def turns(tmp_path):
    (tmp_path / "turns.txt").write_text("".join(TURNS))
    with open(tmp_path / "turns.txt") as lines:
        yield lines


def visible(line):
    """Return what stays on a terminal of a line in which it goes back to the beginning."""
    cells = []
    for part in line.split("\r"):
        cells[: len(part)] = part
    return "".join(cells).rstrip()


def test_long_turns_of_a_chat_have_a_bar_of_what_is_new(talker, turns, answers):
    process, said = start_on_terminal("chat", talker, *CHAT, stdin=turns)
    err, out = read_all(said), process.communicate(timeout=60)[0]
    assert process.returncode == 0, err
    assert out.decode() == "".join(f"{answer}\n" for answer in answers)
    shown = re.findall(r"reading the prompt: .*?\| (\d+)/(\d+) tokens \[.*?tokens/s\]", err)
    for answer in answers:
        total = count_new(answer)
        counts = [int(n) for n, of in shown if int(of) == total]
        assert any(0 < n < total for n in counts)
        assert counts == sorted(counts)


def test_the_bar_of_a_chat_is_gone_before_the_answer(talker, turns, answers):
    """Both are on one terminal, and nothing of the bar stays beside the answer or after it."""
    process, said = start_on_terminal("chat", talker, *CHAT, stdin=turns, stdout=None)
    seen = read_all(said)
    assert process.wait(60) == 0
    assert "reading the prompt" in seen
    lines = [visible(line) for line in seen.removesuffix("\r\n").split("\r\n")]
    written = "".join(f"{answer}\n" for answer in answers).splitlines()
    assert [line for line in lines if not line.startswith("mtpcore: ")] == written


def test_long_turns_of_a_chat_have_lines_elsewhere(talker, answers):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "chat", talker, *CHAT], input="".join(TURNS),
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    shown = re.findall(
        r"^mtpcore: reading the prompt: ([\d,]+) of ([\d,]+) tokens, [\d,.]+ tokens/s$",
        done.stderr, re.M,
    )  # fmt: skip
    for answer in answers:
        assert f"{count_new(answer):,}" in [of for _, of in shown]
    assert "\r" not in done.stderr
