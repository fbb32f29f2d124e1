"""One heap for all threads, as glibc itself counts them."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys, tempfile, threading
from mtpcore.cli.allocator import keep_flat
if sys.argv[1] == "flat" and not keep_flat():
    sys.exit("another allocator")
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]
together = threading.Barrier(4)
def work():
    together.wait()
    block = library.malloc(1000)
    together.wait()
    library.free(block)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
library.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(library.fopen(file.name.encode(), b"w"))
    library.malloc_info(0, stream)
    library.fclose(stream)
    print(file.read().count(b"<heap nr="))
"""


def n_heaps(how):
    command = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(command, capture_output=True, text=True)
    if "another allocator" in done.stderr:
        pytest.skip("this allocator has no such settings")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_all_threads_share_one_heap():
    assert n_heaps("flat") == 1
    assert n_heaps("as it is") > 1
