"""What the tests of backends share."""

import pytest

from mtpcore._ext._cpu import fetch, isa, use_fetch, use_isa
from mtpcore._ext._plan import use_order
from mtpcore.backends.cpu import backend


@pytest.fixture
def share_small_plans(monkeypatch):
    """Let threads share plans so small that one thread would run them alone."""
    monkeypatch.setattr(backend, "WORTH_SHARING", 0.0)


@pytest.fixture(autouse=True)
def _as_before():
    """Set back the instruction set of plans, what they ask for ahead, and the order of threads."""
    isa_before, fetch_before, order = isa(), fetch(), use_order("together")
    yield
    use_isa(isa_before)
    use_fetch(fetch_before)
    use_order(order)
