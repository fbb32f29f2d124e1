"""The package is type-checked for the systems on which no test runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_no_module_asks_for_what_a_system_lacks(system):
    """Attributes that the standard library lacks there are errors."""
    pytest.importorskip("mypy", reason="needs the extra lint")
    cache = ROOT / f".mypy_cache/{system}"  # of its own: one system's types are not another's
    command = ["-m", "mypy", "--no-error-summary", "--platform", system, "--cache-dir", cache]
    done = subprocess.run(
        [sys.executable, *map(str, command), "mtpcore", "plugins"],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
