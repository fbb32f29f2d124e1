"""Damaged files end in success or a refusal, in little memory; ``scripts/fuzz`` tries many more."""

import json
import os
import subprocess
import sys

import pytest

N_FILES = int(os.environ.get("MTPCORE_FUZZ_FILES", "600"))
FIRST = int(os.environ.get("MTPCORE_FUZZ_FIRST", "0"))


def lines(module, *arguments):
    """Return what a module of the harness prints, in a process that holds nothing else."""
    path = os.pathsep.join(part for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return list(map(json.loads, done.stdout.splitlines()))


@pytest.fixture(scope="module")
def endings(tmp_path_factory):
    """Return {seed: how the file ended}."""
    folder = tmp_path_factory.mktemp("damaged")
    found = lines("harness.fuzz", folder, FIRST, FIRST + N_FILES)
    return {one["seed"]: one["how"] for one in found}


def test_every_file_runs_or_is_refused(endings):
    bad = {s: how for s, how in endings.items() if how != "ran" and not how.startswith("refused: ")}
    assert bad == {}


def test_files_are_damaged_in_many_ways(endings):
    """Most files were written; many run all the same, and refusals differ."""
    assert len(endings) > 0.9 * N_FILES
    assert list(endings.values()).count("ran") > 0.2 * N_FILES
    assert len(set(endings.values())) > 25


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="memory has no limit")
def test_small_files_of_odd_shapes(tmp_path):
    found = {one["name"]: one["how"] for one in lines("harness.shapes", tmp_path)}
    assert [name for name, how in found.items() if how != "ran"] == [
        "few long rows",
        "wide heads",
        "too deep",
    ]
    assert found["few long rows"] == "refused: matrices have few and very long rows"
    assert found["wide heads"] == "refused: no memory for a plan"
    assert found["too deep"] == "refused: wrong value: Expected `int` <= 1024"
