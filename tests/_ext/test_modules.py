"""The compiled modules share one file, and are imported like any others."""

import importlib
import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mtpcore import _ext
from mtpcore._ext import MODULES, _matmul

FOLDER = Path(_ext.__file__).parent


def python(code, folder):
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )


def test_every_source_is_a_module_that_is_found():
    assert sorted(MODULES) == sorted(file.stem for file in FOLDER.glob("*.pyx"))


@pytest.mark.parametrize("name", MODULES)
def test_each_may_be_imported_first(name):
    code = f"import mtpcore._ext.{name} as it; print(it.__name__, it.__file__)"
    done = python(code, FOLDER.parents[1])
    assert done.stderr == ""
    assert done.stdout.split() == [f"mtpcore._ext.{name}", _matmul.__file__]


def test_finding_reloading_and_pickling_work_as_with_any_module():
    spec = importlib.util.find_spec("mtpcore._ext._plan")
    assert (spec.name, spec.origin) == ("mtpcore._ext._plan", _matmul.__file__)
    assert importlib.reload(_matmul) is _matmul
    assert pickle.loads(pickle.dumps(_matmul.pack)) is _matmul.pack


def test_names_of_no_module_are_not_found():
    assert importlib.util.find_spec("mtpcore._ext._none") is None
    with pytest.raises(ModuleNotFoundError, match="_none"):
        importlib.import_module("mtpcore._ext._none")


def test_files_of_an_older_build_are_not_taken(tmp_path):
    """They had one file for each module."""
    copy = tmp_path / "mtpcore"
    shutil.copytree(FOLDER.parent, copy, ignore=shutil.ignore_patterns("__pycache__", "data"))
    suffix = Path(_matmul.__file__).name.removeprefix("_native")
    (copy / "_ext" / f"_matmul{suffix}").write_bytes(b"old")
    done = python("from mtpcore._ext import _matmul; print(_matmul.__file__)", tmp_path)
    assert done.stdout.strip() == str(copy / "_ext" / f"_native{suffix}")


def test_a_folder_where_nothing_was_built_says_so(tmp_path):
    copy = tmp_path / "mtpcore"
    shutil.copytree(
        FOLDER.parent, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__", "data")
    )
    done = python("import mtpcore._ext._plan", tmp_path)
    assert done.returncode == 1
    assert "are not in" in done.stderr
    assert "pip install -e ." in done.stderr
