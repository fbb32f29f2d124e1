"""Whatever is given to a public door is taken or refused; ``scripts/fuzz doors`` gives far more."""

import json
import os
import subprocess
import sys

import pytest

SHARE = os.environ.get("MTPCORE_DOORS_SHARE", "20")
FIRST = os.environ.get("MTPCORE_DOORS_FIRST", "0")


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Return what ``harness.calls`` prints, in a process that holds nothing else.

    Some calls write files with names of their own.
    """
    path = os.pathsep.join(os.path.abspath(part) for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, "-m", "harness.calls", SHARE, FIRST],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path_factory.mktemp("doors"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return list(map(json.loads, done.stdout.splitlines()))


def test_every_call_is_done_or_refused_and_changes_nothing_then(said):
    assert said[:-1] == []


def test_the_calls_reach_what_is_after_the_doors(said):
    """As they are meant all doors open, but those to files that are not there, ..."""
    assert said[-1]["refused as they are meant"] == [
        "Context.receive",  # of a model without an encoder
        "Cross.connect",
        "Cross.encode",  # as well
        "Cross.frame",  # of a model that writes tokens
        "DraftVocabulary.read",
        "DraftVocabulary.write",
        "load_adapter",
        "Tokenizer.encode_infill",  # of a model that does not fill in
        "connect",  # of a slot that is full
        "plugin",  # of None
    ]
    endings = said[-1]["endings"]
    assert endings["refused"] > 5 * endings["done"] > 500
