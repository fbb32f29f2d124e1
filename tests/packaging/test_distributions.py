"""What the sdist, the wheel that is built from it, and the plugins' own wheels hold."""

import re
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from harness.wheels import build_wheels
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/pyproject.toml"))


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
def test_wheel_is_small(dist):
    """What an installation fetches: every instruction set, all code, and two small models."""
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as archive:
        files = archive.infolist()
    demos = sum(file.compress_size for file in files if file.filename.endswith(".gguf"))
    assert sum(file.compress_size for file in files) - demos < 8e6
    assert demos < 4.2e6


def test_one_version_stands_everywhere():
    version = project(ROOT)["version"]
    notes = (ROOT / "docs" / "release-notes.md").read_text("utf-8")
    assert re.search(r"^## (\S+?),? ", notes, re.M)[1] == version
    assert [plugin.name for plugin in PLUGINS if project(plugin)["version"] != version] == []
    for folder in (*PLUGINS, *EXAMPLES):
        needed = map(Requirement, project(folder)["dependencies"])
        (own,) = (one.specifier for one in needed if one.name == "mtpcore")
        assert version in own, folder.name


def project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]


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
