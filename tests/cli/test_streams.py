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
        (("-c", 1 << 40), "wanted a whole number >= 0 and < 2147483648"),
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


COMMANDS = {"help": ["--help"], "plugins": ["plugins"], "inspect": ["inspect", "demo"]}
"""What argparse writes, what is written line by line, and what a model's file is opened for."""


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no device that is always full")
@pytest.mark.parametrize("name", COMMANDS)
def test_every_output_that_cannot_be_written_is_one_line(name):
    program = [sys.executable, "-m", "mtpcore", *COMMANDS[name]]
    shell = ["sh", "-c", '"$@" >/dev/full', "sh", *program]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "mtpcore: cannot write the output; got No space left on device\n"
    shell[2] = '"$@" >&-'
    done = subprocess.run(shell, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "mtpcore: cannot write the output; got Bad file descriptor\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_an_output_that_nobody_reads_ends_quietly(name):
    program = [sys.executable, "-m", "mtpcore", *COMMANDS[name]]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 141


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no device that is always full")
def test_a_report_that_cannot_be_written_spoils_no_output(glm):
    program = [sys.executable, "-m", "mtpcore", "run", glm, *PROMPT, "-n", "4"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(program, stdout=subprocess.PIPE, stderr=full, timeout=60)
    assert done.returncode == 0
    assert done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--draft", 99999), "--draft 99999: 8 tokens, as glm_nextn drafts at most 8 tokens"),
        (("--draft-tree", "99,2,5"), "--draft-tree 99: 8 levels, as glm_nextn drafts at most 8"),
        (("-c", 20, "-n", 50), "as more do not fit into -c 20"),
    ],
)
def test_a_number_that_is_cut_is_said_once(command, glm, words, said):
    code, _, err = command("run", glm, *PROMPT, "-n", 4, *words)
    assert code == 0
    assert err.count(said) == 1
    assert "as glm_nextn" not in command("run", glm, *PROMPT, "-n", 4, "--draft", 8)[2]
