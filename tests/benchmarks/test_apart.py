"""mtpcore and llama.cpp's programs in processes of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from timing import Reader
from versus import apart
from versus.hold import Hold
from versus.results import Found, Results
from versus.table import render
from versus.work import Work

import mtpcore

DEMO = Path(mtpcore.__file__).parent / "data" / "demo.gguf"
RUN = {"command": "x", "date": "today", "commit": "c", "load": 0.1, "steal": 0.0, "bandwidth": 2e10}
BENCH = """\
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
slow = 1 + (given["--repack"] == "0") + (given["-fa"] == "on")
print(json.dumps([{"samples_ns": [1e9 * slow, 2e9 * slow, 9e9 * slow]}]))
"""


@pytest.fixture(scope="module")
def read():
    return Reader(1, 1 << 20)


@pytest.mark.parametrize("options", [["--rows=4", "--tokens=8"], ["--sequences=3", "--tokens=2"]])
def test_our_program_prints_seconds(options):
    command = [sys.executable, "-m", "versus.alone", str(DEMO), "--threads=1", "--depth=20"]
    done = subprocess.run(
        [*command, *options], cwd=Path(apart.__file__).parents[1], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert 0 < json.loads(done.stdout)["seconds"] < 60


def peer(folder):
    """A program that takes the time of its settings."""
    program = folder / "llama-bench"
    program.write_text(f"#!{sys.executable}\n{BENCH}")
    program.chmod(0o755)
    return program


def test_the_best_of_the_peers_settings_is_compared(tmp_path, read):
    program = peer(tmp_path)
    (found,) = apart.measure_apart("demo", DEMO, ["decode"], 1, 2, program, Hold(), read)
    assert found.theirs == {"repack 1, fa off": [2.0, 2.0]}
    assert len(found.ours) == 2
    assert found.n_tokens == 32


def test_decoding_says_what_share_of_the_bandwidth_it_used(tmp_path, read):
    (decode,) = apart.measure_apart("demo", DEMO, ["decode"], 1, 1, peer(tmp_path), Hold(), read)
    with mtpcore.load_model(DEMO, mtp=False) as model:
        speed = Work.of(model).n_bytes(1) * decode.n_tokens / decode.seconds
    assert decode.more["share"] == pytest.approx(speed / decode.more["bandwidth"])


def test_a_program_that_fails_says_why(tmp_path, read):
    program = tmp_path / "llama-bench"
    program.write_text("#!/bin/sh\necho no such model >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(RuntimeError, match="ended with 3:\nno such model"):
        list(apart.measure_apart("demo", DEMO, ["decode"], 1, 1, program, Hold(), read))


def test_depths_and_sequences_have_their_place_in_the_table():
    cells = ["sequences-16", "depth-8192", "depth-4096-rows-4", "sequences-4", "depth-4096"]
    cells += ["prefill", "decode"]  # some of whose figures are not measured there
    results = Results({"cpu": "one"}, [RUN])
    for cell in cells:
        results.add(Found("llama-1b-q8_0", cell, 4, [1.0], {"fa on": [2.0]}))
    rows = [
        line.split(" | ")[1] for line in render(results).splitlines() if "llama-1b-q8_0" in line
    ]
    assert rows[:2] == ["decode", "prefill"]
    assert rows[2:] == [
        "depth-4096",
        "depth-4096-rows-4",
        "depth-8192",
        "sequences-4",
        "sequences-16",
    ]
