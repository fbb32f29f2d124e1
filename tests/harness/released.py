"""What a release ships: its sdist, the wheel built from that, and where the wheel is installed."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import distribution
from pathlib import Path

from packaging.metadata import Metadata
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "mtpcore" / "_ext"
OBJECTS = ROOT / "build" / f"temp.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
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


def lacking():
    """Return what is not here of what a wheel for older systems takes, or None."""
    for name in ("ziglang", "auditwheel"):
        if importlib.util.find_spec(name) is None:
            return f"{name}, which the extra `wheels` brings"
    if not OBJECTS.is_dir():
        return f"{OBJECTS}, which an editable installation keeps"
    return None if shutil.which("gcc") else "gcc"


def run(*command, cwd="/", path=None, **environment):
    """Run Python with a module or a command of it; return what it printed."""
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


def build_distributions(folder):
    """Build the sdist, and the wheel from nothing but the sdist; beside them is what that printed.

    From a copy: a build writes beside its sources, where other processes test. The compiler looks
    only whether each source finds the headers that it includes. What it would make is what was made
    of the same files here: the module that this process tests, linked anew where that is possible.
    """
    made = shutil.ignore_patterns(".*", "build", "__pycache__", "*.egg-info", "*.so")
    shutil.copytree(ROOT, folder / "source", ignore=made)
    (module,) = NATIVE.glob("_native*.so") if lacking() else [link_for_release(folder)]
    compiler = folder / "cc"
    compiler.write_text(COMPILER.format(module=module))
    compiler.chmod(0o755)
    command = ("-m", "build", "--no-isolation", "--outdir", folder / "out", folder / "source")
    (folder / "out" / "printed.txt").write_text(run(*command, CC=str(compiler)))
    return folder / "out"


def link_for_release(folder):
    """Link the objects of the module that this process tests as ``tools/manylinux.py`` does."""
    import manylinux

    sources = {file.stem for pattern in ("*.c", "*.pyx") for file in NATIVE.rglob(pattern)}
    objects = sorted(file for file in OBJECTS.rglob("*.o") if file.stem in sources)
    assert len(objects) > len(sources) / 2
    module = folder / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    done = subprocess.run(
        [*manylinux.linker(), *objects, "-o", module],
        env={**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(folder / "zig")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return module


def install_alone(wheel, folder):
    """Install a wheel into an environment that has what it requires, and nothing else.

    What it requires is that of this environment, by links. Return the Python of the other one.
    """
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    options = ("-q", "--no-deps", "--no-index")
    run("-m", "pip", "--python", python, "install", *options, wheel)
    (site,) = folder.glob("lib/python*/site-packages")
    (metadata,) = site.glob("mtpcore-*.dist-info/METADATA")
    needed = Metadata.from_email(metadata.read_text("utf-8"), validate=False).requires_dist
    for name in required(needed):
        found = distribution(name)
        for top in {file.parts[0] for file in found.files} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(found.locate_file(top)).resolve())
    return python


def required(requirements):
    """Return the names of the distributions that requirements lead to, without their extras."""
    waiting, names = [*requirements], set()
    while waiting:
        one = waiting.pop()
        if one.name not in names and (one.marker is None or one.marker.evaluate({"extra": ""})):
            names.add(one.name)
            waiting += map(Requirement, distribution(one.name).requires or ())
    return sorted(names)
