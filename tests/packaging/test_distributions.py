"""What a release ships: sdist to wheel to an import elsewhere, and the plugins' own wheels."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from harness.wheels import build_wheels

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
INSTALLED = """
import importlib, json, sys
import mtpcore
from importlib.metadata import distribution
from mtpcore._ext import MODULES
found = distribution("mtpcore")
compiled = [f.stem.split(".")[0] for f in found.files if f.suffix == ".so"]
for name in MODULES:
    importlib.import_module("mtpcore._ext." + name)
points = {p.name: p.load().__file__ for p in found.entry_points if p.group == "mtpcore"}
print(json.dumps({"mtpcore": mtpcore.__file__, "compiled": compiled, "plugins": points}))
"""

COMPILER = """#!/bin/sh
for argument; do
    [ "$last" = -o ] && made=$argument
    last=$argument
done
case " $* " in
*" -c "*) exec gcc -E "$@" ;;
*) cp "{module}" "$made" ;;
esac
"""


def run(*command, cwd, path=None, **environment):
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(path or ""), **environment},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def install(wheel, target):
    run("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", target, wheel, cwd="/")


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Build the sdist, and the wheel from nothing but the sdist; once for all processes that test.

    From a copy: a build writes beside its sources, where other processes test. The compiler looks
    only whether each source finds the headers that it includes. What it would make is what was made
    of the same files here: the module that this process tests.
    """
    shared, mine = tmp_path_factory.getbasetemp(), tmp_path_factory.mktemp("dist")
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "distributions"
    with open(shared / "distributions.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            made = shutil.ignore_patterns(".*", "build", "__pycache__", "*.egg-info", "*.so")
            shutil.copytree(ROOT, mine / "source", ignore=made)
            compiler = mine / "cc"
            (module,) = (ROOT / "mtpcore" / "_ext").glob("_native*.so")
            compiler.write_text(COMPILER.format(module=module))
            compiler.chmod(0o755)
            command = ("-m", "build", "--no-isolation", "--outdir", mine / "out", mine / "source")
            run(*command, cwd="/", CC=str(compiler))
            (mine / "out").rename(folder)
    return folder


@pytest.mark.slow
def test_sdist_carries_every_source(dist):
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        shipped = {
            file.name.partition("/")[2]: archive.extractfile(file).read()
            for file in archive
            if file.isfile()
        }
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    wanted = {f for f in tracked if not f.startswith(".")} or {"setup.py", "pyproject.toml"}
    assert wanted - {*shipped} == set()
    assert [name for name in wanted if shipped[name] != (ROOT / name).read_bytes()] == []
    assert not [name for name in shipped if name.endswith((".so", ".o", ".pyc"))]


@pytest.mark.slow
def test_wheel_works_where_it_is_installed(dist, tmp_path):
    wheel = next(dist.glob("*.whl"))
    install(wheel, tmp_path / "site")
    found = json.loads(run("-c", INSTALLED, cwd=tmp_path, path=tmp_path / "site"))
    assert Path(found["mtpcore"]).is_relative_to(tmp_path)
    assert found["compiled"] == ["_native"]
    assert "glm_nextn" in found["plugins"]
    assert all(Path(file).is_relative_to(tmp_path) for file in found["plugins"].values())


@pytest.mark.slow
def test_wheel_holds_modules_and_data_and_nothing_else(dist):
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    suffixes = {".py", ".pyi", ".pxd", ".cu", ".cuh", ".gguf", ".json", ".typed", ".html", ".js"}
    wanted = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "mtpcore").rglob("*")
        if file.suffix in suffixes or file.name == "py.typed"
    }
    ours = {name for name in shipped if name.startswith("mtpcore/") and not name.endswith(".so")}
    assert ours == wanted
    assert {name.split("/")[0] for name in shipped} == {"mtpcore"} | {
        file.parent.name for file in (ROOT / "plugins").glob("*/mtpcore_*/__init__.py")
    }


@pytest.mark.slow
def test_every_plugin_is_a_distribution_of_its_own(tmp_path):
    wheels = build_wheels(PLUGINS, tmp_path)
    assert [*wheels] == [plugin.name for plugin in PLUGINS]
    for name, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as archive:
            files = archive.namelist()
            points = next(file for file in files if file.endswith("entry_points.txt"))
            assert "[mtpcore]" in archive.read(points).decode(), name
        assert any(file.startswith(f"mtpcore_{name}/") for file in files)
