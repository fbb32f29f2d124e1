"""Ctrl-C at any moment of any command; ``scripts/fuzz signals`` tries many more."""

import json
import os
import subprocess
import sys

import pytest

N_SIGNALS = int(os.environ.get("MTPCORE_FUZZ_SIGNALS", "8"))
FIRST = int(os.environ.get("MTPCORE_FUZZ_FIRST", "0"))


def test_every_signal_ends_a_command_without_a_traceback(tmp_path):
    path = os.pathsep.join(part for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, "-m", "harness.signals", tmp_path, str(FIRST), str(FIRST + N_SIGNALS)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one for one in found if one["wrong"]] == []
    assert len(found) == N_SIGNALS
    assert any(one["code"] == 130 for one in found) or N_SIGNALS < 8


LATE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
import mtpcore.__main__ as process
import mtpcore.cli

class Odd:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000): pass

def main():
    {body}
    return 0

mtpcore.cli.main = main
sys.exit(process.run())
"""


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGINT)", 130, "mtpcore: interrupted\n"),
        ("Odd()", 130, "mtpcore: interrupted\n"),  # Python cannot raise it there
        ("raise KeyboardInterrupt", 130, "mtpcore: interrupted\n"),
        ("signal.signal(signal.SIGINT, signal.SIG_IGN); Odd()", 0, ""),
    ],
)
def test_an_interrupt_is_no_traceback_wherever_it_comes(body, code, said):
    path = os.pathsep.join(part for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, "-c", LATE.format(body=body)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (code, said)


def test_an_ignored_interrupt_stays_ignored():
    """As shells start what runs after them, and nohup."""
    program = "from mtpcore.__main__ import run; import sys; sys.argv[1:] = ['plugins']; run()"
    program += "; import os, signal; os.kill(os.getpid(), signal.SIGINT); print('alive')"
    path = os.pathsep.join(part for part in sys.path if part)
    ignoring = f"import signal, os; signal.signal(signal.SIGINT, signal.SIG_IGN); {program}"
    done = subprocess.run(
        [sys.executable, "-c", ignoring],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.stdout.endswith("alive\n"), done.stderr
