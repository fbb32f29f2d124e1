"""The process that renders: limited, kept, ended, and started again where it is gone."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mtpcore.errors import MtpcoreError
from mtpcore.gguf import ChatTemplate
from mtpcore.gguf import renderer as module

ECHO = "{{ messages[0].content }}"
LOOP = "{% if messages[0].content == 'loop' %}" + "{% for i in range(99999) %}" * 3
LOOP += "{% endfor %}" * 3 + "{% endif %}" + ECHO
ROOT = Path(__file__).parents[2]


def say(text):
    return [{"role": "user", "content": text}]


def process_of(template):
    """Return the id of the process that renders it."""
    return template._renderer._running[0]._process.pid


def is_alive(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_it_is_kept_and_ends_with_the_template():
    template = ChatTemplate(ECHO)
    pid = process_of(template)
    assert [template.render(say(text)) for text in ("a", "b")] == ["a", "b"]
    assert process_of(template) == pid
    assert is_alive(pid)
    del template
    assert not Path(f"/proc/{pid}").exists()  # not even as a zombie


def test_it_knows_no_secrets_and_hears_no_interrupt(monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "xyzzy")
    template = ChatTemplate(ECHO)
    pid = process_of(template)
    assert b"xyzzy" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert os.getsid(pid) == os.getpgid(pid) == pid  # not ours: Ctrl-C goes to a group
    assert sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"]


def test_a_limit_ends_one_rendering_and_no_more():
    template = ChatTemplate(LOOP)
    for _ in range(2):
        begin = time.process_time()
        with pytest.raises(MtpcoreError, match=r"more than 1\.02 seconds of computing"):
            template.render(say("loop"))
        assert time.process_time() - begin < 0.2  # the other process computed
        assert template.render(say("a")) == "a"


@pytest.mark.parametrize("template", [LOOP, "{{ 'a' * 10 ** 9 }}"], ids=["time", "memory"])
def test_limits_hold_whatever_the_host_limits_or_ignores(template):
    """A process inherits hard limits, ignored signals and blocked ones."""
    program = f"""
import resource
hard = 3 << 30
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
signal.signal(signal.SIGPROF, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPROF])
template = ChatTemplate({template + ECHO!r}, max_seconds=0.1)
print(template.render(say("a")) if "loop" in template.source else "a")
begin = time.monotonic()
try:
    template.render(say("loop"))
except MtpcoreError as error:
    print(error.got)
assert time.monotonic() - begin < 20
"""
    first, why = run(PROLOGUE + program).splitlines()
    assert first[0] == "a"
    assert why == (
        "more than 0.1 seconds of computing"
        if template is LOOP
        else "more than 64 MB of memory, or than fits into the 3072 MB of a process (ulimit -v)"
    )


def test_a_process_that_fails_is_not_said_to_take_memory():
    template = ChatTemplate(LOOP, max_seconds=20)
    pid = process_of(template)
    threading.Timer(0.1, os.kill, (pid, signal.SIGUSR1)).start()  # nohup ignores SIGHUP
    with pytest.raises(MtpcoreError, match=f"ended with status -{signal.SIGUSR1:d}") as raised:
        template.render(say("loop"))
    assert not raised.value.fix


EACH_WITH_EACH = """
{%- for message in messages %}{% for other in messages %}
    {%- if other.content == message.content %}{% set found = other.content %}{% endif %}
{%- endfor %}{% endfor %}{{ messages | length }}"""


def test_a_long_conversation_may_take_longer(monkeypatch):
    """Templates for tools look through the conversation again for each message."""
    template = ChatTemplate(EACH_WITH_EACH)
    monkeypatch.setattr(module, "MAX_SECONDS", 0.02)
    monkeypatch.setattr(module, "_PATIENCE", 3000)
    assert template.render(say("a") * 400) == "400"
    monkeypatch.setattr(module, "SECONDS_PER_ITEM", 0.0)
    with pytest.raises(MtpcoreError, match="seconds of computing") as raised:
        template.render(say("a") * 400)
    assert "max_seconds" in raised.value.fix
    template.max_seconds = 60
    assert template.render(say("a") * 400) == "400"


def test_the_caller_may_allow_more_memory():
    template = ChatTemplate("{{ ('a' * 70000000) | length }}")
    with pytest.raises(MtpcoreError, match="more than 64 MB of memory") as raised:
        template.render(say("a"))
    assert "max_memory" in raised.value.fix
    template.max_memory = 200 << 20
    assert template.render(say("a")) == "70000000"


@pytest.mark.parametrize(
    ("name", "value"), [("max_seconds", 0), ("max_seconds", "1"), ("max_memory", -1)]
)
def test_a_limit_that_is_none_is_refused(name, value):
    template = ChatTemplate(ECHO)
    with pytest.raises(MtpcoreError, match=name):
        setattr(template, name, value)
    assert getattr(template, name) is None


def test_where_somebody_ended_it_the_next_rendering_starts_another():
    template = ChatTemplate(ECHO)
    for end in (signal.SIGKILL, signal.SIGTERM):
        pid = process_of(template)
        os.kill(pid, end)
        assert wait_for(lambda pid=pid: not is_alive(pid))
        assert template.render(say("a")) == "a"
        assert process_of(template) != pid


def test_where_it_is_ended_while_it_renders_an_error_says_so():
    template = ChatTemplate(LOOP)
    pid = process_of(template)
    threading.Timer(0.1, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(MtpcoreError, match="ended with status -9"):
        template.render(say("loop"))
    assert template.render(say("a")) == "a"


def test_where_it_is_stopped_the_wait_has_an_end(monkeypatch):
    template = ChatTemplate(ECHO)
    monkeypatch.setattr(module, "_PATIENCE", 0.2)
    os.kill(process_of(template), signal.SIGSTOP)
    with pytest.raises(MtpcoreError, match=r"no end in 0\.2 seconds"):
        template.render(say("a"))


def test_renderings_in_threads_are_not_mixed_up():
    template, found = ChatTemplate(ECHO), {}

    def render(name):
        found[name] = {template.render(say(name * 1000)) for _ in range(50)}

    threads = [threading.Thread(target=render, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {name: {name * 1000} for name in "abcd"}


def run(program, quiet=True):
    """Run a program that may import mtpcore; return its standard output."""
    path = os.pathsep.join(part for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert not quiet or done.stderr == ""
    return done.stdout


PROLOGUE = """
import os, signal, sys, time
from pathlib import Path
from mtpcore.gguf import ChatTemplate
from mtpcore.errors import MtpcoreError
say = lambda text: [{"role": "user", "content": text}]
process_of = lambda template: template._renderer._running[0]._process.pid
"""


def test_a_fork_starts_its_own():
    program = """
template = ChatTemplate("{{ messages[0].content }}")
pid = process_of(template)
child = os.fork()
texts = [template.render(say(f"{child} {i}")) for i in range(200)]
assert texts == [f"{child} {i}" for i in range(200)]
assert (process_of(template) == pid) == (child != 0)
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert template.render(say("a")) == "a"
    assert process_of(template) == pid
    print("done")
"""
    assert run(PROLOGUE + program) == "done\n"


def test_a_fork_while_a_thread_renders_does_not_wait_for_it():
    program = """
import threading
template, over = ChatTemplate("{{ messages[0].content }}"), threading.Event()
def render():
    while not over.is_set():
        assert template.render(say("thread")) == "thread"
thread = threading.Thread(target=render)
thread.start()
for _ in range(12):
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(template.render(say("fork")) != "fork")
    assert os.waitpid(child, 0)[1] == 0
over.set()
thread.join()
"""
    run(PROLOGUE + program)


def test_it_ends_with_this_process_in_whatever_way():
    for end in ("sys.exit()", "os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"):
        program = f"t = ChatTemplate('a'); print(process_of(t), flush=True); {end}"
        path = os.pathsep.join(part for part in sys.path if part)
        done = subprocess.run(
            [sys.executable, "-c", PROLOGUE + program],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
        )
        pid = int(done.stdout)
        assert wait_for(lambda pid=pid: not is_alive(pid)), end


@pytest.mark.parametrize("closed", [(0,), (0, 1), (0, 1, 2), (2,)])
def test_standard_streams_may_be_closed(closed, tmp_path):
    out = tmp_path / "out"
    program = f"""
for stream in {closed}:
    os.close(stream)
t = ChatTemplate("{{{{ messages[0].content }}}}")
Path({str(out)!r}).write_text(t.render(say("a")))
os._exit(0)
"""
    run(PROLOGUE + program)
    assert out.read_text() == "a"


def test_after_interrupts_at_any_time_texts_are_right():
    """Some come while the process starts; none may mix up answers or leave a process behind."""
    program = """
import random
rng, interrupts, n = random.Random(7), 0, 0
template = ChatTemplate("{{ messages[0].content }}")
begin = time.monotonic()
while time.monotonic() - begin < 2.5:
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.choice([0.002, 0.2]) * rng.random())
        for n in range(n, n + 400):
            assert template.render(say(str(n))) == str(n)
    except KeyboardInterrupt:
        interrupts += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(interrupts)
def running():
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids]
    return [state for state in states if state != "Z"]
while len(running()) > 1 and time.monotonic() - begin < 20:
    time.sleep(0.05)
assert len(running()) <= 1, running()
"""
    handler = "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
    # Python itself tells of interrupts that come where it cannot raise them.
    assert int(run(PROLOGUE + handler + program, quiet=False)) > 20


def test_an_interrupt_while_it_looks_for_the_process_stops_no_later_rendering():
    """At every instruction of that, in the standard library's code, too."""
    program = """
class Interrupt:
    def __init__(self, place):
        self.left, self.raised = place, False
    def begin(self, frame, event, arg):
        if frame.f_code.co_name != "has_ended":
            return None
        sys.settrace(self.follow)
        return self.follow(frame, event, arg)
    def follow(self, frame, event, arg):
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                self.raised = True
                raise KeyboardInterrupt
        if event == "return" and frame.f_code.co_name == "has_ended":
            sys.settrace(None)
        return self.follow
template, place, raised = ChatTemplate("{{ messages[0].content }}"), 0, True
while raised:
    interrupt = Interrupt(place)
    sys.settrace(interrupt.begin)
    try:
        template.render(say("a"))
    except KeyboardInterrupt:
        pass
    sys.settrace(None)
    raised = interrupt.raised
    signal.alarm(20)  # it would wait for ever
    assert template.render(say(str(place))) == str(place)
    signal.alarm(0)
    place += 1
assert place > 20, place
"""
    run(PROLOGUE + program, quiet=False)


@pytest.mark.parametrize("python", ["/nonexistent", "/bin/true", "/bin/cat", ""])
def test_a_program_that_is_no_python_is_named(monkeypatch, python):
    monkeypatch.setattr("multiprocessing.spawn._python_exe", os.fsencode(python))
    monkeypatch.setattr(module, "_PATIENCE", 1.0)
    with pytest.raises(MtpcoreError, match="no process can be started") as raised:
        ChatTemplate(ECHO)
    assert "set_executable" in raised.value.fix


def test_a_frozen_program_does_not_run_itself(monkeypatch):
    python = sys.executable
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(MtpcoreError, match="no Python interpreter"):
        ChatTemplate(ECHO)
    monkeypatch.setattr(sys, "executable", "/opt/program")
    monkeypatch.setattr("multiprocessing.spawn._python_exe", os.fsencode(python))
    assert ChatTemplate(ECHO).render(say("a")) == "a"


def test_a_long_conversation_fits():
    texts = ["\u65e5\u672c" * 500_000, "a" * 3_000_000]
    template = ChatTemplate("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    found = template.render([*say(texts[0]), *say(texts[1])])
    assert found == f"<{texts[0]}><{texts[1]}>"


def test_what_a_refusal_says_does_not_steer_a_terminal():
    with pytest.raises(MtpcoreError) as raised:
        ChatTemplate("{{ raise_exception('\x1b[31m' ~ 'a' * 9999) }}").render([])
    assert "\x1b" not in str(raised.value)
    assert len(str(raised.value)) < 1200
    assert json.dumps(raised.value.got)
