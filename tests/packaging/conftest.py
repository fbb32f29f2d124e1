"""What a release ships, made once for all processes that test."""

import fcntl
import os

import pytest
from harness.released import build_distributions, lacking


@pytest.fixture(scope="session")
def dist(tmp_path_factory):
    """Return the folder with sdist, wheel, and what building them printed."""
    shared, mine = tmp_path_factory.getbasetemp(), tmp_path_factory.mktemp("dist")
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "distributions"
    with open(shared / "distributions.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            build_distributions(mine).rename(folder)
    return folder


@pytest.fixture(scope="session")
def manylinux_wheel(dist, tmp_path_factory):
    """Return the wheel, checked and renamed as a release's."""
    if missing := lacking():
        pytest.skip(f"no {missing}")
    import manylinux

    (wheel,) = dist.glob("*.whl")
    return manylinux.repair(wheel, tmp_path_factory.mktemp("repaired"))
