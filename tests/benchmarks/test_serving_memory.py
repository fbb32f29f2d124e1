import pytest
from serving_memory import measure

N = 60
_MOST = 24e6
"""Bytes; a server that kept 600 kB a request would exceed it."""


def test_a_server_holds_as_much_after_many_requests_as_after_some():
    pytest.importorskip("llguidance")
    found = list(measure("demo", N, 4, 1))
    numbers, sizes, kinds = zip(*found, strict=True)
    assert numbers == tuple(range(N // 10, N + 1, N // 10))
    assert kinds[-1] == {"200": N * 10 // 12, "400": N // 12, "left": N // 12}
    assert sizes[-1] - sizes[2] < _MOST
