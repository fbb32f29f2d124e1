"""Formatting, lint and types: each tool is one test, so that pytest alone is the verdict."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
C_FILES = sorted(
    str(file.relative_to(ROOT))
    for folder in ("mtpcore/_ext/c", "tests/_ext/compare")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in {".c", ".h", ".inc"}
)
CLANG_FORMAT = "from clang_format import clang_format; clang_format()"
CYTHON_LINT = "import sys; from cython_lint.cython_lint import main; sys.exit(main())"
TOOLS = {
    "ruff format": ["-m", "ruff", "format", "--check", "--no-cache", "."],
    "ruff check": ["-m", "ruff", "check", "--no-cache", "."],
    "cython-lint": ["-c", CYTHON_LINT, "mtpcore"],
    "clang-format": ["-c", CLANG_FORMAT, "--dry-run", "--Werror", *C_FILES],
    "mypy": ["-m", "mypy", "--no-error-summary"],
}


@pytest.mark.parametrize("tool", TOOLS)
def test_tool_finds_nothing(tool):
    module = tool.split()[0].replace("-", "_")
    pytest.importorskip(module, reason="needs the extra lint")
    # cython-lint calls pycodestyle by name, and the environment need not be activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        [sys.executable, *TOOLS[tool]],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{tool}:\n{done.stdout}{done.stderr}"
