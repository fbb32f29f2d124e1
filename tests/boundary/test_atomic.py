"""A file is written all or not at all."""

import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mtpcore
from mtpcore import DraftVocabulary, ModelFileError
from mtpcore.boundary.atomic import replacing
from mtpcore.gguf import write_model_file

NEW = DraftVocabulary([3, 1, 2], "new")


def test_it_takes_the_place_of_another_when_it_is_whole(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o640)
    with replacing(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "a"
    path.write_text("old")

    def write():
        with replacing(path) as part:
            part.write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_two_that_write_one_file_leave_one_of_both_whole(tmp_path):
    path = tmp_path / "a"
    with replacing(path) as part:
        part.write_text("first")
        with replacing(path) as other:
            assert other != part
            other.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["a"]


KILLED = """
import os, signal, sys
from mtpcore.boundary.atomic import replacing
with replacing(sys.argv[1]) as part:
    part.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_goes_with_the_next_file(tmp_path):
    path = tmp_path / ("name" * 60)
    others = [f"{path.name}.part", f"{path.name}.mtpcore-old", "b.mtpcore-0.part"]
    for name in others:
        (tmp_path / name).write_text("of somebody else")
    with replacing(path) as part:
        part.write_text("whole")
        assert run(KILLED, path).returncode == -signal.SIGKILL
        assert len(os.listdir(tmp_path)) == len(others) + 2
        with replacing(path) as later:
            later.write_text("later")
            assert sorted(os.listdir(tmp_path)) == sorted([*others, part.name, later.name])
    assert sorted(os.listdir(tmp_path)) == sorted([*others, path.name])


def test_a_new_file_has_the_permissions_that_others_have(tmp_path):
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "a") as part:
            part.write_text("new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "to").write_text("old")
    (tmp_path / "link").symlink_to("to")
    with replacing(tmp_path / "link") as part:
        part.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "to").read_text() == "new"


def test_what_cannot_be_replaced(tmp_path):
    with pytest.raises(IsADirectoryError), replacing(tmp_path):
        pytest.fail("a folder")
    with replacing("/dev/null") as part:
        part.write_text("gone")
    assert os.path.exists("/dev/null")
    assert not os.path.isfile("/dev/null")


LIMITED = """
import resource, sys
from mtpcore import DraftVocabulary, ModelFileError
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    DraftVocabulary(range(100000), "new").write(sys.argv[1])
except ModelFileError as error:
    print(error.got)
"""


def run(code, path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    return subprocess.run(
        [sys.executable, "-c", code, path], env=env, capture_output=True, text=True
    )


def test_a_vocabulary_for_which_there_is_no_room_leaves_the_old_one(tmp_path):
    path = tmp_path / "v.json"
    NEW.write(path)
    done = run(LIMITED, path)
    assert done.stdout == "File too large\n", done.stderr
    assert DraftVocabulary.read(path).tokens.tolist() == [3, 1, 2]
    assert os.listdir(tmp_path) == ["v.json"]


def test_a_vocabulary_that_cannot_be_written_says_so(tmp_path):
    for path in (tmp_path, tmp_path / "none" / "v.json", ""):
        with pytest.raises(ModelFileError, match="cannot write the draft vocabulary"):
            NEW.write(path)


def test_a_model_file_that_cannot_be_made_leaves_the_old_one(tmp_path):
    path = tmp_path / "m.gguf"
    write_model_file(path, "toy", {}, {"a": np.zeros((2, 32), np.float32)})
    before = path.read_bytes()
    with pytest.raises(ModelFileError):
        write_model_file(path, "toy", {}, {"a": np.zeros((2, 31), np.float32)}, "Q8_0")
    with pytest.raises(AttributeError):
        write_model_file(path, "toy", {"toy.n": 1}, {"a": np.zeros((2, 32)), "b": None})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.gguf"]


WRITES = re.compile(
    r"""\bopen\([^)]*["'](?:w|x|a|r\+)|\.write_(?:text|bytes)\(|\btofile\(|O_CREAT"""
)


def test_every_file_is_written_so():
    package = Path(mtpcore.__file__).parent
    sources = [*package.rglob("*.py"), *package.parent.glob("plugins/*/mtpcore_*/**/*.py")]
    writers = {path.name: text for path in sources if WRITES.search(text := path.read_text())}
    assert {"saving.py", "stream.py", "draft_vocabulary.py", "fetch_cache.py"} <= writers.keys()
    appending = {"turns.py"}  # a history, which grows line by line
    appending |= {"row_files.py"}  # parts of a job, which job.py gives their names
    appending |= {"held_files.py"}  # what replacing is made of
    others = [name for name, text in writers.items() if "replacing(" not in text]
    assert {*others} == appending
