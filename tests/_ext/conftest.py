"""What the tests of compiled modules share."""

import pytest

from mtpcore._ext import _matmul


@pytest.fixture(autouse=True)
def _as_before():
    """Set back the instruction set of products, and how they ask for weights."""
    isa, fetch = _matmul.isa(), _matmul.fetch()
    yield
    _matmul.use_isa(isa)
    _matmul.use_fetch(fetch)
