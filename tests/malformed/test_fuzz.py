"""Damaged files end in success or a refusal, in little memory; ``scripts/fuzz`` tries many more."""

import json
import os
import subprocess
import sys

import pytest

N_FILES = int(os.environ.get("MTPCORE_FUZZ_FILES", "600"))
FIRST = int(os.environ.get("MTPCORE_FUZZ_FIRST", "0"))


@pytest.fixture(scope="module")
def endings(tmp_path_factory):
    """Return {seed: how the file ended}."""
    folder = tmp_path_factory.mktemp("damaged")
    command = [sys.executable, "-m", "harness.fuzz", str(folder), str(FIRST), str(FIRST + N_FILES)]
    path = os.pathsep.join(part for part in sys.path if part)
    done = subprocess.run(
        [*command], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = map(json.loads, done.stdout.splitlines())
    return {one["seed"]: one["how"] for one in found}


def test_every_file_runs_or_is_refused(endings):
    bad = {s: how for s, how in endings.items() if how != "ran" and not how.startswith("refused: ")}
    assert bad == {}


def test_files_are_damaged_in_many_ways(endings):
    """Most files were written; many run all the same, and refusals differ."""
    assert len(endings) > 0.9 * N_FILES
    assert list(endings.values()).count("ran") > 0.2 * N_FILES
    assert len(set(endings.values())) > 25
