"""A processor without fused multiply-add: the C library computes it, and the bits stay the same."""

import os
import platform
import subprocess
import sys

import pytest

from mtpcore._ext._cpu import available_isas

CHILD = """
import ctypes
import hashlib
import mtpcore

fmaf = ctypes.cast(ctypes.CDLL("libm.so.6").fmaf, ctypes.c_void_p).value
print(ctypes.string_at(fmaf, 16).hex())
context = mtpcore.Context(mtpcore.load_model("demo"), 64, threads=2)
for begin, tokens in ((0, [5, 6, 7, 8, 9, 10, 11, 12, 13]), (9, [14])):
    logits = context.process(mtpcore.Batch.of(tokens, pos=begin, outputs="all")).logits
    print(hashlib.blake2b(logits.tobytes(), digest_size=16).hexdigest())
print(context.digest(0).hex())
"""
WITHOUT_FMA = {"MTPCORE_ISA": "base", "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2"}


def run(**names):
    """Return the code of the ``fmaf`` that a child has, and digests of what the demo computes."""
    path = os.pathsep.join(p for p in sys.path if p)
    command = [sys.executable, "-c", CHILD]
    environment = os.environ | {"PYTHONPATH": path} | names
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    code, *digests = done.stdout.split()
    return code, digests


@pytest.mark.skipif(
    (platform.machine(), platform.libc_ver()[0]) != ("x86_64", "glibc"),
    reason="glibc on x86-64 can be told that there is no FMA",
)
def test_bits_are_the_same_without_the_instruction():
    code, wanted = run(MTPCORE_ISA=available_isas()[-1])
    other_code, found = run(**WITHOUT_FMA)
    if other_code == code:
        pytest.skip("this glibc has the same fmaf either way")
    assert found == wanted
