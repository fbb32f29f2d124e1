"""Damaged folders and files are converted or refused; ``scripts/fuzz`` tries many more.

What comes out loads, its tokenizer encodes and decodes, and it runs.
"""

import json
import os
import subprocess
import sys

import pytest

N_FOLDERS = int(os.environ.get("MTPCORE_FUZZ_FILES", "120"))
N_FILES = int(os.environ.get("MTPCORE_FUZZ_FILES", "60"))
FIRST = int(os.environ.get("MTPCORE_FUZZ_FIRST", "0"))


def endings(act, folder, n):
    """Return {seed: how it ended}."""
    path = os.pathsep.join(part for part in sys.path if part)
    module = [sys.executable, "-m", "harness.fuzz_conversion"]
    done = subprocess.run(
        [*module, act, str(folder), str(FIRST), str(FIRST + n)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {one["seed"]: one["how"] for one in map(json.loads, done.stdout.splitlines())}


def wrong(found):
    return {s: how for s, how in found.items() if how != "ran" and not how.startswith("refused: ")}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return endings("convert", tmp_path_factory.mktemp("folders"), N_FOLDERS)


def test_every_folder_is_converted_or_refused(folders):
    assert wrong(folders) == {}


def test_folders_are_damaged_in_many_ways(folders):
    assert len(folders) == N_FOLDERS
    assert list(folders.values()).count("ran") > 0.1 * N_FOLDERS
    assert len(set(folders.values())) > 40


def test_every_file_is_quantised_or_refused(tmp_path):
    found = endings("quantize", tmp_path, N_FILES)
    assert wrong(found) == {}
    assert list(found.values()).count("ran") > 0.1 * N_FILES
