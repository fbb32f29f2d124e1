"""What commands do where standard streams, the locale or a value are not as they should be."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROMPT = ("-p", "def read_config(path):")


def test_nobody_reading_is_no_crash(glm):
    program = [sys.executable, "-m", "mtpcore", "run", glm, *PROMPT, "-n", "100"]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    report = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(60) == 141
    assert "Traceback" not in report
    assert "BrokenPipe" not in report


@pytest.mark.parametrize(
    ("closed", "words", "code", "said"),
    [
        (">&-", (*PROMPT, "-n", "4"), 1, "cannot write the output; got Bad file descriptor"),
        ("<&-", ("-f", "-", "-n", "4"), 1, "cannot read the prompt; got Bad file descriptor"),
        ("<&-", (*PROMPT, "-n", "4"), 0, "4 tokens"),
        ("2>&-", (*PROMPT, "-n", "4"), 0, ""),
        ("2>&-", ("--frobnicate",), 2, ""),
    ],
)
def test_a_closed_stream_is_no_crash(glm, closed, words, code, said):
    program = [sys.executable, "-m", "mtpcore", "run", glm, *words]
    shell = ["sh", "-c", f'"$@" {closed}', "sh", *program]
    done = subprocess.run(shell, capture_output=True, timeout=60)
    report = done.stderr.decode()
    assert done.returncode == code
    assert said in report
    assert "Traceback" not in report
    assert bool(done.stdout) == (code == 0)


def test_arguments_are_utf8_in_every_locale(glm):
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    texts = []
    for env in (os.environ, plain):
        program = [sys.executable, "-m", "mtpcore", "run", glm, "-p", "é = ü", "-n", "4", "--json"]
        done = subprocess.run(program, env=env, capture_output=True, timeout=60, check=True)
        texts.append(json.loads(done.stdout)["prompt_tokens"])
    assert texts[0] == texts[1]
    done = subprocess.run(
        [*map(os.fsencode, program[:-4]), b"\xff", b"-n", b"4"], env=plain, capture_output=True
    )
    assert done.returncode == 2
    assert b"wanted text in UTF-8" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-c", 1 << 40), "wanted a whole number >= 1 and < 2147483648"),
        (("--stop", ""), "--stop: wanted a text, got an empty one"),
    ],
)
def test_wrong_values_are_told_with_what_is_wanted(command, glm, words, said):
    code, out, err = command("run", glm, *PROMPT, *words)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no device that is always full")
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_output_that_cannot_be_written_is_an_error_and_no_crash(glm, options):
    program = [sys.executable, "-m", "mtpcore", "run", glm, *PROMPT, "-n", "4", *options]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, timeout=60)
    report = done.stderr.decode()
    assert done.returncode == 1
    assert "mtpcore: cannot write the output; got No space left on device" in report
    assert "Traceback" not in report
    assert "Exception" not in report
