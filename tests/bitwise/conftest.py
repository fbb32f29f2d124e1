"""Which instruction sets and how many combinations the run compared."""

import pytest

COMPARED = pytest.StashKey()


@pytest.fixture(scope="session")
def compared(request):
    """Lines for the summary of the run."""
    return request.config.stash.setdefault(COMPARED, [])


def pytest_terminal_summary(terminalreporter, config):
    for line in config.stash.get(COMPARED, []):
        terminalreporter.write_line(f"bitwise: {line}")
