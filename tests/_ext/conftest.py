"""What the tests of compiled modules share."""

import pytest

from mtpcore._ext import _cpu


@pytest.fixture(autouse=True)
def _as_before():
    """Set back the instruction set, and how weights are prefetched."""
    isa, fetch = _cpu.isa(), _cpu.fetch()
    yield
    _cpu.use_isa(isa)
    _cpu.use_fetch(fetch)
