"""A stand-in for the hub, with a cache of its own."""

import pytest
from harness.hub import taken_for_the_hub


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Serve a stand-in, which this process takes for the hub."""
    with taken_for_the_hub(tmp_path, monkeypatch) as hub:
        yield hub
