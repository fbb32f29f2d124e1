"""Chat templates end soon and in little memory, whatever they do; ``scripts/fuzz templates`` tries
many more."""

import json
import os
import subprocess
import sys

import pytest
from harness.bombs import BOMBS

N_TEMPLATES = int(os.environ.get("MTPCORE_FUZZ_TEMPLATES", "20"))
FIRST = int(os.environ.get("MTPCORE_FUZZ_FIRST", "0"))
SECONDS = 0.4 if "MTPCORE_FUZZ_TEMPLATES" in os.environ else 0.05
MOST = 1.0  # seconds of computing, the start of an interpreter on a slow machine included
MEMORY = 100e6

pytestmark = pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""), reason="the process that measures has no limit"
)


def bad(*seeds):
    """Return what took too much, and how many were refused."""
    path = os.pathsep.join(part for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, "-m", "harness.bombs", str(SECONDS), *map(str, seeds)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == (seeds[1] - seeds[0] if seeds else len(BOMBS))
    n_refused = sum(one["how"].startswith("refused") for one in found)
    return [one for one in found if one["seconds"] > MOST or one["peak"] > MEMORY], n_refused


def test_every_known_bomb_is_put_out():
    found, n_refused = bad()
    assert found == []
    assert n_refused > 0.9 * len(BOMBS)


def test_every_template_ends():
    found, n_refused = bad(FIRST, FIRST + N_TEMPLATES)
    assert found == []
    assert 0 < n_refused < N_TEMPLATES or N_TEMPLATES < 20
