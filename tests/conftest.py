"""How long hypothesis searches (HYPOTHESIS_PROFILE=deep, or the bounded ``ci`` by default), what
the summary of a run says besides, one thread for NumPy's products, and no waiting for disks."""

import gc
import os

from harness.search import CI_EXAMPLES
from hypothesis import HealthCheck, settings

# Read when NumPy is imported. Matrices of tests are small: threads of its OpenBLAS would spin for
# each other, beside those of the other workers, and take longer than the products themselves.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Thousands of small model files are written; none has to outlive a failure of the machine.
os.fsync = lambda descriptor: None

# Derandomised, so that a run says the same about the same commit; a slow machine is no failure.
settings.register_profile(
    "ci",
    derandomize=True,
    max_examples=CI_EXAMPLES,
    stateful_step_count=30,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "deep",
    max_examples=int(os.environ.get("MTPCORE_EXAMPLES", "1000")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_finish():
    """Let the collector of garbage pass over thousands of tests, which live as long as the run."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Say which instruction sets and how many combinations were compared bit for bit.

    It stands here because of several processes only the first, which collects nothing, sums up.
    """
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, line in report.user_properties:
                    if name == "compared":
                        terminalreporter.write_line(f"bitwise: {line}")
