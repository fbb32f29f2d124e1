"""Wheels of folders that hold pure Python, built of copies, all in one process."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

BUILD = """
import os, sys
from setuptools import build_meta
folder, *sources = sys.argv[1:]
for source in sources:
    os.chdir(source)
    build_meta.build_wheel(folder)
"""
"""What ``pip wheel`` and ``build`` have done in a process each."""


def build_wheels(sources, folder):
    """Build a wheel of each source in a folder; return them by the names of the sources."""
    made = shutil.ignore_patterns("build", "__pycache__", "*.egg-info")
    copies = {
        source.name: shutil.copytree(source, folder / "sources" / source.name, ignore=made)
        for source in sources
    }
    done = subprocess.run(
        [sys.executable, "-c", BUILD, folder, *copies.values()],
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return {name: wheel_of(name, folder) for name in copies}


def wheel_of(name, folder):
    """Return the wheel of a distribution, whose folder may lack the first part of its name."""
    stem = name.replace("-", "_")
    (wheel,) = (*folder.glob(f"{stem}-*.whl"), *folder.glob(f"mtpcore_{stem}-*.whl"))
    return wheel


def install(wheel: Path, site: Path):
    """Install a wheel of pure Python: its files are what is installed."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
