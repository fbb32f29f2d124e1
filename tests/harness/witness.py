"""llama.cpp as a witness: what it makes of a model file and a text, in a process of its own.

A file that it cannot take may end the process, and its threads would spin beside ours.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

__all__ = ["Testimony", "hear", "hear_vocabulary", "load", "needs_llama_cpp"]

needs_llama_cpp = pytest.mark.skipif(
    find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed"
)
PATHS = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "benchmarks")]


class Testimony(NamedTuple):
    """A text that llama.cpp wrote on: int32[n], and the logits f32[n, n_vocab] after each token.

    What was given was one batch, what follows single tokens.
    """

    text: np.ndarray
    logits: np.ndarray


def hear(
    path: Path, given: list[int], n_more: int, out: Path, source: list[int] | None = None
) -> Testimony:
    """Return ``given`` with the ``n_more`` tokens that llama.cpp finds most probable after it.

    Its keys and values are float32. ``out`` is a file to write, ``source`` what an encoder reads.
    """
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {PATHS}; "
               "from harness.witness import testify; testify()"]  # fmt: skip
    asked = json.dumps(
        {"path": str(path), "given": given, "n_more": n_more, "out": str(out), "source": source}
    )
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"llama.cpp ended with {done.returncode}:\n{done.stderr}")
    with np.load(out) as file:
        return Testimony(file["text"], file["logits"])


TOKENS = """
import ctypes, json, sys
import llama_cpp as peer
asked = peer.llama_model_default_params()
asked.vocab_only = True
model = peer.llama_model_load_from_file(sys.argv[1].encode(), asked)
vocabulary = peer.llama_model_get_vocab(model)
n, room = peer.llama_vocab_n_tokens(vocabulary), (ctypes.c_int * 4096)()
def tokenize(text):
    data = text.encode()
    found = peer.llama_tokenize(vocabulary, data, len(data), room, 4096, True, True)
    return list(room[:found])
print(json.dumps({
    "attributes": [peer.llama_vocab_get_attr(vocabulary, token) for token in range(n)],
    "ends": [token for token in range(n) if peer.llama_vocab_is_eog(vocabulary, token)],
    "ids": [tokenize(text) for text in json.loads(sys.argv[2])],
}))
"""


def hear_vocabulary(path: Path, texts: list[str]) -> dict[str, list[Any]]:
    """Return what llama.cpp makes of a vocabulary: tokens' attributes, ends, and ids of texts.

    Control tokens are parsed in texts, and put around them.
    """
    done = subprocess.run(
        [sys.executable, "-c", TOKENS, str(path), json.dumps(texts)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"llama.cpp ended with {done.returncode}:\n{done.stderr}")
    return dict(json.loads(done.stdout))


LOAD = """
import sys, llama_cpp
asked = llama_cpp.llama_model_default_params()
sys.exit(not llama_cpp.llama_model_load_from_file(sys.argv[1].encode(), asked))
"""


def load(path: Path) -> None:
    """Let llama.cpp load a file that it cannot run alone; raise AssertionError if it fails."""
    command = [sys.executable, "-c", LOAD, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{path}: {done.stderr[-2000:]}"


def testify() -> None:
    """Answer what ``hear`` asks on the standard input."""
    from versus.peer import Peer, PeerModel

    asked = json.load(sys.stdin)
    text, n_more = asked["given"], asked["n_more"]
    model = PeerModel(Path(asked["path"]), repack=False, mtp=True)
    peer = Peer(model, flash=False, n_ctx=512, threads=1, kv_dtype="f32")
    if asked["source"] is not None:
        peer.encode(asked["source"])
    logits = [peer.process(text, every=True).copy()]
    for _ in range(n_more):
        text.append(int(logits[-1][-1].argmax()))
        logits.append(peer.process(text[-1:]).copy())
    peer.close()
    np.savez(asked["out"], text=np.array(text, np.int32), logits=np.concatenate(logits))
