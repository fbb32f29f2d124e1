"""mtpcore and llama.cpp's programs in processes of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from versus import apart
from versus.hold import Hold
from versus.results import Found, Results
from versus.table import render

import mtpcore

DEMO = Path(mtpcore.__file__).parent / "data" / "demo.gguf"
RUN = {"command": "x", "date": "today", "commit": "c", "load": 0.1, "steal": 0.0, "bandwidth": 2e10}
BENCH = """\
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
slow = 1 + (given["--repack"] == "0") + (given["-fa"] == "on")
print(json.dumps([{"samples_ns": [1e9 * slow, 2e9 * slow, 9e9 * slow]}]))
"""


@pytest.mark.parametrize("options", [["--rows=4", "--tokens=8"], ["--sequences=3", "--tokens=2"]])
def test_our_program_prints_seconds(options):
    command = [sys.executable, "-m", "versus.alone", str(DEMO), "--threads=1", "--depth=20"]
    done = subprocess.run(
        [*command, *options], cwd=Path(apart.__file__).parents[1], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert 0 < json.loads(done.stdout)["seconds"] < 60


def test_the_best_of_the_peers_settings_is_compared(tmp_path):
    program = tmp_path / "llama-bench"
    program.write_text(f"#!{sys.executable}\n{BENCH}")
    program.chmod(0o755)
    (found,) = apart.measure_apart("demo", DEMO, ["decode"], 1, 2, program, Hold())
    assert found.theirs == {"repack 1, fa off": [2.0, 2.0]}
    assert len(found.ours) == 2
    assert found.n_tokens == 32


def test_a_program_that_fails_says_why(tmp_path):
    program = tmp_path / "llama-bench"
    program.write_text("#!/bin/sh\necho no such model >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(RuntimeError, match="ended with 3:\nno such model"):
        list(apart.measure_apart("demo", DEMO, ["decode"], 1, 1, program, Hold()))


def test_depths_and_sequences_have_their_place_in_the_table():
    cells = ["sequences-16", "depth-8192", "depth-4096-rows-4", "sequences-4", "depth-4096"]
    results = Results({"cpu": "one"}, [RUN])
    for cell in cells:
        results.add(Found("a-q8_0", cell, 4, [1.0], {"fa on": [2.0]}))
    rows = [line.split(" | ")[1] for line in render(results).splitlines() if "a-q8_0" in line]
    assert rows == ["depth-4096", "depth-4096-rows-4", "depth-8192", "sequences-4", "sequences-16"]
