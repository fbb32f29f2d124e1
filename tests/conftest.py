"""How long hypothesis searches (HYPOTHESIS_PROFILE=deep, or the bounded ``ci`` by default), and
what the summary of a run says besides."""

import os

from harness.search import CI_EXAMPLES
from hypothesis import HealthCheck, settings

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
