"""Formatting, lint and types: each tool is a test, so that pytest alone is the verdict."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness.pages import PAGES, blocks_of

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
}
MYPY = ["-m", "mypy", "--no-error-summary"]


def run(tool, *command, **environment):
    pytest.importorskip(tool.split()[0].replace("-", "_"), reason="needs the extra lint")
    # cython-lint calls pycodestyle by name, and the environment need not be activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{tool}:\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("tool", TOOLS)
def test_tool_finds_nothing(tool):
    run(tool, *TOOLS[tool])


def test_types_are_right_in_the_tree_and_in_pages(tmp_path):
    """One test: what was found out of the package for the tree is not found out again for pages."""
    run("mypy", *MYPY)
    for page in PAGES:
        code = ""
        for block in blocks_of(page):
            code += block[code.count("\n") :]
        (tmp_path / f"{page.stem.replace('-', '_')}.py").write_text(code, "utf-8")
    run("mypy", *MYPY, "--strict", str(tmp_path), MYPYPATH="plugins/glm_nextn")
