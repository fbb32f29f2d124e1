"""Ray on this machine, without its dashboard, for the tests of this folder."""

import os

import pytest

ALL = "MTPCORE_ALL_OF_RAY"
"""Set by ``scripts/cluster``: each process that Ray starts imports it, which takes seconds."""


def pytest_collection_modifyitems(items):
    """Leave to that script what other tests show in part."""
    if ALL not in os.environ:
        for item in items:
            if item.get_closest_marker("many_processes"):
                item.add_marker(pytest.mark.skip(reason="scripts/cluster runs it"))


@pytest.fixture(scope="session")
def ray():
    """Ray, begun with two CPUs."""
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # it would write a key into the home folder
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_worker_niceness", "0")  # 15 by default: all other tests come first
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # each process would compile all
        patch.setenv("PYTHONWARNINGS", "ignore")  # of its own processes
        patch.setenv("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=bool(os.environ.get("MTPCORE_RAY_LOG")),
            configure_logging=False,
        )
        yield ray
        ray.shutdown()
