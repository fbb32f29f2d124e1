"""What a server still holds of requests that it has answered: nothing, whatever their kind."""

import ctypes
import functools
import gc
import json
import sys
import time
from itertools import pairwise
from types import SimpleNamespace

import msgspec
import pytest
from harness.served import serving
from serving_memory import KINDS, TEMPLATE, ask

import mtpcore
from mtpcore.gguf import ChatTemplate
from mtpcore.serving import ServerSettings

N, N_WINDOWS = 10, 4
"""Requests of a window, and windows: what is kept grows in each of them."""
MORE = {"schema": 30}
"""Requests of a window where the state of the latest one, which is kept, differs much in size."""
FIRST = {"two-texts": 40}
"""Requests before them, where there are more: schedules, which are kept."""
MOST = {"containers": 0.7, "blocks": 10, "bytes": 1500}
"""A request: what Python's collector knows, blocks of Python's allocator, bytes of C's."""


class _Usage(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "free", "small", "mapped")]
    _fields_ += [(name, ctypes.c_size_t) for name in ("mapped_bytes", "zero", "small_bytes")]
    _fields_ += [(name, ctypes.c_size_t) for name in ("bytes", "free_bytes", "top_bytes")]


@pytest.fixture(scope="module")
def caches():
    """Of functions; else what was there before is not looked at: a run of all tests has much."""
    found = [one for one in gc.get_objects() if isinstance(one, functools._lru_cache_wrapper)]
    gc.collect()
    gc.freeze()
    yield found
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # as it was before


def in_use(caches):
    """Return what is in use, as ``MOST`` counts it; no cache of a function holds any of it."""
    last, found = None, _read_in_use(caches)
    for _ in range(50):
        if found == last:
            break
        time.sleep(0.02)  # the server's threads are still letting go of the last request
        last, found = found, _read_in_use(caches)
    return found


def _read_in_use(caches):
    for one in caches:
        one.cache_clear()
    gc.collect()
    containers, blocks = len(gc.get_objects()), sys.getallocatedblocks()
    try:
        ask_glibc = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return containers, blocks, 0
    ask_glibc.restype = _Usage
    usage = ask_glibc()
    return containers, blocks, usage.bytes + usage.mapped_bytes


@pytest.fixture(scope="module")
def port(caches):
    """Of a server of the demo of its own; msgspec's memory of keys is full.

    Compiled grammars are looked at as caches of functions are: those kept differ much in size.
    """
    pytest.importorskip("llguidance")
    msgspec.json.decode(json.dumps({f"key{i}": 0 for i in range(20_000)}))
    model = mtpcore.load_model("demo")
    model.chat_template = ChatTemplate(TEMPLATE)
    with (
        mtpcore.LM(model, n_ctx=256, draft="auto", threads=1) as lm,
        serving(lm, ServerSettings(name="demo")) as url,
    ):
        caches.append(SimpleNamespace(cache_clear=model.grammars._compiled.clear))
        yield int(url.rpartition(":")[2])


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=KINDS)
def test_nothing_is_kept_of_a_request(port, caches, kind):
    numbers = (len(KINDS) * i + kind for i in range(sys.maxsize))
    n = MORE.get(KINDS[kind], N)
    for _ in range(FIRST.get(KINDS[kind], n)):
        ask(port, next(numbers))
    held = [in_use(caches)]
    for _ in range(N_WINDOWS):
        for _ in range(n):
            ask(port, next(numbers))
        held.append(in_use(caches))
    grown = [[b - a for a, b in zip(one, other, strict=True)] for one, other in pairwise(held)]
    for (what, most), counts in zip(MOST.items(), zip(*grown, strict=True), strict=True):
        assert min(counts) < n * most, (what, counts)
