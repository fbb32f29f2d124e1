"""What a build from the sources says: while it compiles, and where it cannot."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_build_says_what_it_compiles(dist):
    """An installation prints the same lines where ``-v`` asks for them."""
    lines = re.findall(r"^mtpcore: (.+)$", (dist / "printed.txt").read_text("utf-8"), re.M)
    files = r"compiling \d+ C files and \d+ Cython modules on \d+ cores\. If all of them are new, "
    assert re.match(files + r"this takes about [\d.]+ minutes$", lines[0]), lines
    libraries = [line.split()[0] for line in lines if line.endswith("C libraries")]
    assert "mtpcore_base" in libraries
    assert [
        line for line in lines if line.endswith(f"{len(libraries)} of {len(libraries)} C libraries")
    ]
    assert re.match(r"compiled and linked in \d+ seconds$", lines[-1]), lines


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"CC": "no-such-compiler -O2"}, "the compiler no-such-compiler is not found. Install one"),
        ({"PYTHONPATH": "{tmp_path}"}, "Python's headers are not installed: no {tmp_path}"),
    ],
    ids=["compiler", "headers"],
)
def test_what_a_build_lacks_is_said_at_once(tmp_path, environment, said):
    (tmp_path / "sitecustomize.py").write_text(
        "import sysconfig\nfound = sysconfig.get_paths\n"
        f"sysconfig.get_paths = lambda *a, **k: found(*a, **k) | {{'include': {str(tmp_path)!r}}}"
    )
    given = {name: value.format(tmp_path=tmp_path) for name, value in environment.items()}
    done = subprocess.run(
        [sys.executable, "setup.py", "build", "--build-base", str(tmp_path)],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **given},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode != 0
    assert said.format(tmp_path=tmp_path) in done.stderr
    assert "apt install" in done.stderr
    assert "Cythonizing" not in done.stdout
