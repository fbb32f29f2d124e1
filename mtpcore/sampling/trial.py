"""A process that tries a grammar, so that limits of the operating system can end it.

llguidance bounds what it computes, but for the patterns that a schema demands of one text at once:
for a dozen of them it takes minutes, and for each further one twice as long.
"""

from __future__ import annotations

import os
import re
import subprocess
from importlib.util import find_spec
from multiprocessing import spawn
from pathlib import Path

from mtpcore.errors import SamplingError
from mtpcore.system import children

__all__ = ["may_take_long", "try_grammar"]

_SECONDS = 2
"""Of computing."""
_PATIENCE = 60.0
"""Seconds by the clock: the machine may be busy."""
_MEMORY = 1 << 30
_MOST_PATTERNS = 4
_PATTERN = re.compile(r'"(?:pattern|format|patternProperties|propertyNames)')
_TOGETHER = re.compile(r'"(?:allOf|\$ref|patternProperties)|&')
_PROGRAM = f"""
import runpy, sys
limits = runpy.run_path(sys.argv[2])
limits["prepare"]()
limits["limit_work"]({_SECONDS}, {_MEMORY})
sys.path.append(sys.argv[1])
from llguidance import LLMatcher
LLMatcher.validate_grammar(sys.stdin.read())
sys.stdout.write("done")
"""


def may_take_long(source: str) -> bool:
    """Say whether a grammar may demand many patterns of one text."""
    return len(_PATTERN.findall(source)) > _MOST_PATTERNS and bool(_TOGETHER.search(source))


def try_grammar(source: str) -> None:
    """Compile a grammar in a process of its own; whether it is right is not looked at.

    Raises
    ------
    SamplingError
        It exceeds a limit, or there can be no process.
    """
    spec = find_spec("llguidance")
    folders = [*(spec.submodule_search_locations or ())] if spec else []
    python = os.fsdecode(spawn.get_executable() or "python3")
    folder = str(Path(folders[0]).parent) if folders else ""
    command = [python, "-s", "-P", "-S", "-c", _PROGRAM, folder, children.__file__]
    try:
        done = subprocess.run(
            command, input=source.encode(), capture_output=True, timeout=_PATIENCE, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SamplingError(
            "the grammar cannot be tried in a process of its own", where="grammar", got=error
        ) from error
    if done.stdout != b"done":
        raise SamplingError(
            "the grammar takes too long to compile",
            where="grammar",
            wanted=f"at most {_SECONDS} seconds of computing and {_MEMORY >> 20} MB",
            fix="demand fewer patterns of one text: allOf joins them",
        )
