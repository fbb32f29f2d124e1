"""``mtpcore chat``: turns, commands, and what Ctrl-C stops."""

import contextlib
import errno
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import types

import pytest

import mtpcore
from mtpcore.cli import main, turns

TEMPLATE = """{% for m in messages %}{% if m.content == "forbidden" %}
{{ raise_exception("not that") }}{% endif %}<{{ m.role }}>{{ m.content }}
{% endfor %}<assistant>"""
SETTINGS = ("-n", "12", "--temp", "0.8", "--seed", "3", "-t", "1")


@pytest.fixture(scope="module")
def model(write_part, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "chat.gguf"
    return write_part(path, lambda name: True, **{"tokenizer.chat_template": TEMPLATE})


@pytest.fixture
def chat(command, monkeypatch, model):
    """Give a conversation on standard input; return exit code, standard output and error."""

    def run(lines, *options):
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        return command("chat", model, *SETTINGS, *options)

    return run


def answers(model, *questions, system=None):
    """What an LM answers in a conversation with these questions."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    said = []
    with mtpcore.LM(model, draft=0, threads=1) as lm:
        for question in questions:
            messages.append({"role": "user", "content": question})
            said.append(lm.chat(messages, max_tokens=12, temperature=0.8, seed=3).text)
            messages.append({"role": "assistant", "content": said[-1]})
    return "".join(text if text.endswith("\n") else text + "\n" for text in said)


def test_reasoning_is_no_part_of_what_was_said(chat, tmp_path):
    """Templates leave it out of earlier turns, where they are told which it is."""
    template = (
        "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}"
        "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant><think>{% endif %}"
    )
    saved = tmp_path / "chat.json"
    code, out, _ = chat(f"hello\n/save {saved}\n", "--chat-template", template)
    assert code == 0
    _, answer = json.loads(saved.read_text("utf-8"))
    assert answer["content"] == ""
    assert answer["reasoning_content"] == out.strip()
    code, out, err = chat(f"/load {saved}\nmore\n", "--chat-template", template)
    assert (code, bool(out.strip())) == (0, True)
    assert "2 messages read" in err


def test_each_line_is_a_turn_of_one_conversation(chat, model):
    code, out, _ = chat("hello\nand then?\n\nmore\n")
    assert code == 0
    assert out == answers(model, "hello", "and then?", "more")
    assert out != answers(model, "hello") + answers(model, "and then?") + answers(model, "more")


def test_standard_input_that_cannot_be_read(command, monkeypatch, model):
    class Closed(io.StringIO):
        def readline(self, size=-1):
            raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr("sys.stdin", Closed())
    code, out, err = command("chat", model, *SETTINGS)
    assert (code, out) == (1, "")
    assert "standard input: cannot read a turn; got Bad file descriptor" in err


def test_a_system_prompt_comes_first_and_stays_after_a_reset(chat, model):
    _, out, _ = chat("hello\n/reset\nhello\n", "--system", "Be short.")
    assert out == 2 * answers(model, "hello", system="Be short.")
    assert answers(model, "hello", system="Be short.") != answers(model, "hello")


def test_commands_are_no_turns(chat, model):
    code, out, err = chat("/help\nhello\n/stats\n/nonsense\n/exit\nnot read\n")
    assert code == 0
    assert out == answers(model, "hello")
    assert "/clear" in err
    assert "no such command: /nonsense; /help lists them, and //nonsense sends it" in err
    assert re.search(r"0 of \d+ prompt tokens were reused; --seed 3", err)


def test_no_turn_is_processed_twice(chat):
    _, _, err = chat("hello\nand then?\n/stats\n", "--draft", "0")
    reused, total = map(int, re.search(r"(\d+) of (\d+) prompt tokens were reused", err).groups())
    assert total > reused > total / 4


def test_a_turn_that_fails_is_forgotten(chat, model):
    code, out, err = chat("hello\nforbidden\nand then?\n")
    assert code == 0
    assert "not that" in err
    assert out == answers(model, "hello", "and then?")


def test_a_full_context_is_said_with_a_way_out(chat):
    code, _, err = chat("hello\n" + "word " * 40 + "\n", "-c", "24", "-n", "-1")
    assert code == 0
    assert "the context of 24 tokens is full" in err
    assert "longer than the context" in err
    assert "/clear" in err
    assert "n_ctx" not in err


def test_old_turns_make_room(chat, model):
    """Of a conversation that takes three quarters of the context, half of it stays."""
    lines = "".join(f"question {i}\n" for i in range(9))
    code, out, err = chat(lines, "-c", "128", "--system", "Be short.", "--when-full", "shift")
    assert code == 0
    assert "of the oldest turns left out, to make room in 128 tokens" in err
    assert "is full" not in err
    messages, said, n_left_out = [{"role": "system", "content": "Be short."}], [], 0
    with mtpcore.LM(model, n_ctx=128, draft=0, threads=1) as lm:
        for i in range(9):
            messages.append({"role": "user", "content": f"question {i}"})
            if len(lm.encode_chat(messages)) > 96:
                while len(lm.encode_chat(messages)) > 64:
                    del messages[1:3]
                    n_left_out += 1
            answer = lm.chat(
                messages, max_tokens=12, temperature=0.8, seed=3, when_full="shift"
            ).text
            messages.append({"role": "assistant", "content": answer})
            said.append(answer if answer.endswith("\n") else answer + "\n")
    assert n_left_out > 1
    assert out == "".join(said)


def test_an_answer_goes_on_where_the_context_is_full(chat):
    code, out, err = chat("hello\n", "-c", "40", "-n", "90", "--when-full", "shift")
    assert code == 0
    assert "is full" not in err
    assert len(out) > 90


def test_a_model_without_a_chat_template_says_what_to_do(command, glm):
    code, _, err = command("chat", glm)
    assert code == 1
    assert "no chat template" in err
    assert "mtpcore run" in err


def test_wrong_options_are_refused(command, model):
    assert command("chat", model, "-n", "-2")[0] == 2
    assert command("chat")[0] == 2
    assert main(["chat", "--help"]) == 0


def test_a_turn_may_have_several_lines_and_begin_with_a_slash(chat, model):
    lines = '"""one\n\n two"""\n"""\nthree\n"""\nfour \\\nfive\n//help\n/etc/hosts is a file\n'
    code, out, err = chat(lines)
    assert (code, "no such command" in err) == (0, False)
    turns = ("one\n\n two", "three", "four \nfive", "/help", "/etc/hosts is a file")
    assert out == answers(model, *turns)


def test_a_question_is_answered_again_or_taken_back(chat, model):
    """Another answer takes the place of the first, with other noise and without a trace."""
    _, out, err = chat("/regen\n/undo\nhello\n/regen\n/undo\nhi\n/undo\nhello\n", "--draft", "0")
    assert "there is no question yet" in err
    assert "nothing to take back" in err
    first = answers(model, "hello")
    assert out.startswith(first)
    again = out[len(first) :]
    assert not again.startswith(first)
    assert len(out) > len(first)
    _, out, err = chat("hello\n/regen\n", "--temp", "0")
    assert "/set temp 0.8" in err
    assert out[: len(out) // 2] == out[len(out) // 2 :]


def test_settings_and_the_system_prompt_change_while_it_runs(chat, model):
    _, out, err = chat(
        "/system\n/system Be short.\n/set temp=0.8\n/set n 12\nhello\n/clear\nhello\n",
        "--temp",
        "0",
        "-n",
        "3",
    )
    assert out == 2 * answers(model, "hello", system="Be short.")
    assert "there is no system prompt" in err
    assert "temp 0.8, top-k 40, top-p 0.95, min-p 0.05, repeat-penalty 1, seed 3, n 12" in err
    for wrong, said in (
        ("/set top-p 7", "bad top_p"),
        ("/set top-k many", "top-k: wanted a number, got 'many'"),
        ("/set warmth 3", "no such setting: warmth; there are temp"),
    ):
        assert said in chat(f"{wrong}\n")[2]


def test_a_conversation_is_saved_and_goes_on(chat, model, tmp_path):
    file = tmp_path / "chat.json"
    _, out, _ = chat(f"hello\n/save {file}\nand then?\n", "--system", "Be short.")
    saved = json.loads(file.read_text())
    assert [one["role"] for one in saved] == ["system", "user", "assistant"]
    _, rest, _ = chat(f"/load {file}\nand then?\n")
    assert out == answers(model, "hello", system="Be short.") + rest
    file.write_text('[{"role": "user"}]')
    for command, said in (
        (f"/load {file}", "no conversation"),
        (f"/load {tmp_path / 'none'}", "No such file"),
        (f"/save {tmp_path}", "Is a directory"),
        ("/save", "give a file"),
        ("/load", "give a file"),
    ):
        code, _, err = chat(f"{command}\n")
        assert (code, said in err) == (0, True), err


class Terminal:
    """A chat in a process of its own at a terminal of its own."""

    def __init__(self, model, state, *options, term="dumb"):
        self.master, slave = pty.openpty()
        path = os.pathsep.join(part for part in sys.path if part)
        env = {**os.environ, "PYTHONPATH": path, "TERM": term, "XDG_STATE_HOME": str(state)}
        program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        program += "from mtpcore.__main__ import run; import sys; sys.exit(run())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, "chat", model, "-t", "1", *options],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""

    def read_until(self, pattern, patience=60):
        """Read until a pattern comes; return what came before it and with it."""
        end = time.monotonic() + patience
        while not (found := re.search(pattern, self.seen)):
            ready, _, _ = select.select([self.master], [], [], max(end - time.monotonic(), 0))
            assert ready, f"no {pattern!r} in {self.seen!r}"
            try:
                self.seen += os.read(self.master, 4096).decode("utf-8", "replace")
            except OSError:  # the process has ended
                assert re.search(pattern, self.seen), self.seen
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def type(self, text):
        os.write(self.master, text.encode())

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def interrupt_prompt(self):
        """Interrupt once the prompt, which was shown just now, waits: before, Python may not see
        the signal until a key is pressed."""
        time.sleep(1.0)
        self.interrupt()

    def wait(self):
        return self.process.wait(60)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal(model, tmp_path):
    with contextlib.ExitStack() as stack:

        def open_terminal(*options, **settings):
            made = Terminal(model, tmp_path, *options, **settings)
            stack.callback(made.close)
            made.read_until("> ")
            return made

        yield open_terminal


def test_ctrl_c_stops_an_answer_and_not_the_program(terminal):
    chat = terminal("--temp", "1", "-c", "500", "--backend", "reference")
    for _ in range(2):  # it is no once-only
        chat.type("hello\n")
        chat.read_until(r"hello\r\n(.|\n)+?\w")
        chat.interrupt()
        said = chat.read_until("> ")
        assert "stopped" in said
        assert "Traceback" not in said
    chat.type("/stats\n")
    assert "prompt tokens were reused" in chat.read_until("> ")
    chat.type("/exit\n")
    assert chat.wait() == 0


def test_ctrl_c_twice_at_the_prompt_ends(terminal):
    chat = terminal()
    chat.interrupt_prompt()
    assert "Ctrl-C again" in chat.read_until("> ")
    chat.type("/help\n")  # a line in between counts
    chat.read_until("> ")
    chat.interrupt_prompt()
    assert "Ctrl-C again" in chat.read_until("> ")
    chat.interrupt_prompt()
    assert chat.wait() == 130


def test_ctrl_d_ends(terminal):
    chat = terminal()
    chat.type("\x04")
    assert chat.wait() == 0


def test_a_pasted_text_is_one_turn(terminal, model):
    chat = terminal(*SETTINGS, "--color", "never", term="xterm")
    chat.type("\x1b[200~hello\nthere\x1b[201~\r")
    said = chat.read_until(r"tokens at [\d,.]+ tokens/s(.|\n)*> ")
    assert answers(model, "hello\nthere").strip() in said.replace("\r\n", "\n")


def test_earlier_turns_come_back_in_the_next_chat(terminal, tmp_path):
    kept = tmp_path / "mtpcore" / "chat-history.jsonl"
    for options, n in ((("--no-history",), 0), ((), 1), ((), 2)):
        chat = terminal(*SETTINGS, *options)
        chat.type("\x1b[A\r" if n == 2 else "/set n 2\r")
        chat.read_until("seed 3, n 2")
        chat.read_until("> ")
        chat.type("\x04")
        assert chat.wait() == 0
        assert (len(kept.read_text().splitlines()) if kept.exists() else 0) == n
    assert kept.stat().st_mode & 0o777 == 0o600
    with kept.open("a") as file:
        file.write('"cut o')
    terminal(*SETTINGS)


def test_a_long_history_is_cut(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("mtpcore.cli.turns._LONGEST", 3)
    seen = []
    readline = types.SimpleNamespace(add_history=seen.append)
    file = turns._open_history(readline)
    file.write_text("".join(f'"{i}"\n' for i in range(9)) + "7\n")
    turns._open_history(readline)
    assert seen == ["7", "8"]
    assert file.read_text() == '"7"\n"8"\n7\n'


def test_earlier_conversations_are_drafted_from_where_that_is_wanted(chat):
    """The answers stay the same."""
    asked = "hello\n/clear\nhello\n/stats\n", "-n", "40", "--draft", "8", "--drafter", "lookup"
    (_, alone, before), (code, out, err) = chat(*asked), chat(*asked, "--lookup-others", "1000")
    assert (code, out) == (0, alone)
    found = [re.search(r"(\d+) of \d+ drafts by lookup", text) for text in (before, err)]
    assert all(found), (before, err)
    assert int(found[1][1]) > int(found[0][1]) + 20
