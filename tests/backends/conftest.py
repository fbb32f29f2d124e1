"""What the tests of backends share."""

import pytest

from mtpcore._ext._plan import use_fetch, use_isa, use_order
from mtpcore.backends.cpu import backend


@pytest.fixture
def share_small_plans(monkeypatch):
    """Let threads share plans so small that one thread would run them alone."""
    monkeypatch.setattr(backend, "WORTH_SHARING", 0.0)


@pytest.fixture(autouse=True)
def _as_before():
    """Set back the instruction set of plans, what they ask for ahead, and the order of threads."""
    isa, fetch, order = use_isa("base"), use_fetch("lines"), use_order("together")
    use_isa(isa)
    use_fetch(fetch)
    yield
    use_isa(isa)
    use_fetch(fetch)
    use_order(order)
