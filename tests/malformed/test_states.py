"""Damaged and forged states are loaded or refused; ``scripts/fuzz states`` tries many more."""

import json
import os
import subprocess
import sys

import pytest

N_STATES = int(os.environ.get("MTPCORE_FUZZ_FILES", "150"))
FIRST = int(os.environ.get("MTPCORE_FUZZ_FIRST", "0"))


@pytest.fixture(scope="module")
def endings():
    """Return {seed: how it ended}."""
    path = os.pathsep.join(part for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, "-m", "harness.fuzz_states", str(FIRST), str(FIRST + N_STATES)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {one["seed"]: one["how"] for one in map(json.loads, done.stdout.splitlines())}


def test_every_state_is_loaded_or_refused(endings):
    bad = {s: how for s, how in endings.items() if how != "ran" and not how.startswith("refused: ")}
    assert bad == {}


def test_states_are_damaged_in_many_ways(endings):
    assert len(endings) == N_STATES
    assert list(endings.values()).count("ran") > 0.05 * N_STATES
    assert len(set(endings.values())) > 12
