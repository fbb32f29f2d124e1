"""What the tests of compiled modules share."""

import pytest

from mtpcore._ext import _matmul


@pytest.fixture(autouse=True)
def _as_before():
    """Set back the instruction set of products."""
    before = _matmul.isa()
    yield
    _matmul.use_isa(before)
