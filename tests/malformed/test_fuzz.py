"""Damaged files, and files whose parts do not fit each other, end in success or a refusal, in
little memory; ``scripts/fuzz`` tries many more.
"""

import json
import os
import subprocess
import sys

import pytest

N_FILES = {"damaged": 300, "reshaped": 300}
N_FILES |= {kind: int(os.environ.get("MTPCORE_FUZZ_FILES", n)) for kind, n in N_FILES.items()}
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


@pytest.fixture(scope="module", params=N_FILES)
def endings(request, tmp_path_factory):
    """Return how many files there were to be, and {seed: how the file ended}."""
    kind, folder = request.param, tmp_path_factory.mktemp("files")
    found = lines("harness.fuzz", kind, folder, FIRST, FIRST + N_FILES[kind])
    return N_FILES[kind], {one["seed"]: one["how"] for one in found}


def test_every_file_runs_or_is_refused(endings):
    found = endings[1].items()
    bad = {s: how for s, how in found if how != "ran" and not how.startswith("refused: ")}
    assert bad == {}


def test_files_are_changed_in_many_ways(endings):
    """Most files were written; many run all the same, and refusals differ."""
    n_files, found = endings
    assert len(found) > 0.9 * n_files
    assert list(found.values()).count("ran") > 0.2 * n_files
    assert len(set(found.values())) > 25


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
