"""Third-party plugins: each example is built into a wheel, installed elsewhere and tested there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness.wheels import build_wheels, install

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/pyproject.toml"))


def run(*command, cwd, path, **environment):
    names = ("PATH", "HOME", "TMPDIR", "LD_PRELOAD", "ASAN_OPTIONS", "MTPCORE_ISA")
    keep = {name: os.environ[name] for name in names if name in os.environ}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**keep, **environment, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    return build_wheels(EXAMPLES, tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda folder: folder.name)
def installed(request, wheels, tmp_path_factory):
    """Install an example's wheel alone; return name, tests and site."""
    folder, site = request.param, tmp_path_factory.mktemp(request.param.name)
    install(wheels[folder.name], site)
    return folder.name, folder / "tests", site


PLUGINS = """
from mtpcore.discovery.registry import describe_plugins
for plugin in describe_plugins():
    if not plugin.first_party:
        print(plugin.name, *plugin.distributions, *(d.name for d in plugin.drafters), plugin.error)
"""


@pytest.mark.slow
def test_example_is_listed(installed, tmp_path):
    name, _, site = installed
    listed = run("-c", PLUGINS, cwd=tmp_path, path=[site, ROOT, ROOT / "plugins/glm_nextn"])
    (line,) = (line for line in listed.splitlines() if f" {name} " in line)
    plugin, _, version, *drafters, error = line.split()
    assert name == "mtpcore-" + plugin.replace("_", "-")
    assert (version, error) == ("0.1.0", "None")
    assert drafters


@pytest.fixture(scope="module")
def noted(tmp_path_factory):
    """Return where Hypothesis notes the constants of the package, which it reads file by file."""
    return str(tmp_path_factory.mktemp("hypothesis"))


@pytest.mark.slow
@pytest.mark.isas
def test_example_passes_its_own_tests(installed, noted, tmp_path):
    _, tests, site = installed
    quiet = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull)
    where = ("--rootdir", tmp_path, "--import-mode=importlib", tests)
    path = [site, ROOT, ROOT / "plugins/glm_nextn"]
    environment = {"HYPOTHESIS_STORAGE_DIRECTORY": noted}
    assert " passed" in run(*quiet, *where, cwd=tmp_path, path=path, **environment)
