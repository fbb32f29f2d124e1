"""A file that is cut while it is mapped: what is not read yet is refused, what is packed runs on.

To read after the end of a mapped file kills the process (SIGBUS), so each test runs in its own.
"""

import shutil
import signal
import subprocess
import sys

import pytest

from mtpcore.discovery.loading import find_model

BEGIN = """
import os, sys
import mtpcore

path = sys.argv[1]

def cut():
    os.truncate(path, 4096)

def process(context):
    return context.process(mtpcore.Batch.of([1, 2, 3], pos=context.length(0))).logits

def refusal(act):
    try:
        act()
    except mtpcore.ModelFileError as error:
        assert error.where == path, error
        assert error.got == "4096 bytes", error
        assert "renaming" in error.fix
        return error.what
    return "none"

SHORTER = "the file has become shorter while it was in use"
"""


def run(folder, body):
    """Run a script on a copy of a model with a head; return how its process ended."""
    path = folder / "model.gguf"
    shutil.copy(find_model("demo"), path)
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + body, path], capture_output=True, text=True, check=False
    )
    ended = signal.Signals(-done.returncode).name if done.returncode < 0 else done.returncode
    return ended, done.stderr


@pytest.mark.parametrize("repack", [True, False])
def test_no_context_is_made_of_a_shortened_file(tmp_path, repack):
    body = f"""
model = mtpcore.load_model(path, repack={repack})
cut()
assert refusal(mtpcore.Context(model, n_ctx=64).prepare) == SHORTER
"""
    assert run(tmp_path, body) == (0, "")


def test_weights_in_the_file_are_looked_for_before_each_context(tmp_path):
    body = """
model = mtpcore.load_model(path, repack=False)
process(mtpcore.Context(model, n_ctx=64))
cut()
assert refusal(mtpcore.Context(model, n_ctx=64).prepare) == SHORTER
"""
    assert run(tmp_path, body) == (0, "")


def test_packed_weights_do_not_need_the_file(tmp_path):
    body = """
model = mtpcore.load_model(path)
one = mtpcore.Context(model, n_ctx=64)
one.prepare()
wanted = process(one).tobytes()
cut()
process(one)
assert process(mtpcore.Context(model, n_ctx=64)).tobytes() == wanted
assert refusal(mtpcore.link(mtpcore.Context(model, n_ctx=64)).prepare) == SHORTER
"""
    assert run(tmp_path, body) == (0, "")


def test_a_file_that_is_renamed_to_the_name_disturbs_nobody(tmp_path):
    body = """
model = mtpcore.load_model(path, repack=False)
one = mtpcore.Context(model, n_ctx=64)
wanted = process(one).tobytes()
with open(path + ".new", "wb") as file:
    file.write(b"GGUF")
os.replace(path + ".new", path)
process(one)
assert process(mtpcore.Context(model, n_ctx=64)).tobytes() == wanted
"""
    assert run(tmp_path, body) == (0, "")


def test_a_model_file_is_written_beside_the_one_in_use(tmp_path):
    body = """
import numpy as np
from mtpcore.gguf import write_model_file
model = mtpcore.load_model(path, repack=False)
one = mtpcore.Context(model, n_ctx=64)
wanted = process(one).tobytes()
write_model_file(path, "toy", {}, {"x": np.zeros(4, np.float32)})
assert process(mtpcore.Context(model, n_ctx=64)).tobytes() == wanted
try:
    write_model_file(path, "toy", {}, {"x": np.zeros(4, np.uint8)}, "Q8_0")
except mtpcore.ModelFileError:
    pass
assert os.listdir(os.path.dirname(path)) == ["model.gguf"]
assert list(mtpcore.gguf.open_model_file(path).tensors) == ["x"]
"""
    assert run(tmp_path, body) == (0, "")


def test_tensors_of_a_shortened_file_are_refused(tmp_path):
    body = """
from mtpcore.gguf import open_model_file
file = open_model_file(path)
tensor = list(file.tensors.values())[-1]
cut()
for read in (tensor.raw, tensor.array, lambda: tensor.rows(0, 1)):
    assert refusal(read) == SHORTER
"""
    assert run(tmp_path, body) == (0, "")
