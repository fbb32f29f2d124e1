"""The AVX-512 products keep their sums in registers: the compiled code is looked at."""

import re
import shutil
import subprocess
from collections import Counter

import pytest

from mtpcore._ext import _matmul
from mtpcore._ext._plan import HAS_ASAN

# A few at the borders of a loop cost nothing, nor do sums of one half of a tile while the other is
# multiplied. When a compiler decides otherwise, it is hundreds.
MOST_ON_THE_STACK = 80
FUNCTION = re.compile(r"^[0-9a-f]+ <(\w+)>:$")
PRODUCT = re.compile(r"(?:i?q\d_\w+|mxfp4|b?f16|f32)_[1-8]")
STACK = re.compile(r"\(%r[sb]p\)")


@pytest.fixture(scope="module")
def disassembly():
    if shutil.which("objdump") is None:
        pytest.skip("no objdump")
    command = ["objdump", "-d", "--no-show-raw-insn", _matmul.__file__]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 or "zmm" not in done.stdout:
        pytest.skip("not built for x86-64 as objdump knows it")
    return done.stdout.splitlines()


@pytest.mark.skipif(HAS_ASAN, reason="built without optimisation, to be watched")
def test_products_keep_their_sums_in_registers(disassembly):
    on_the_stack, uses_vectors = Counter(), Counter()
    name = ""
    for line in disassembly:
        if begin := FUNCTION.match(line):
            name = begin[1]
        elif "zmm" in line and PRODUCT.fullmatch(name):
            uses_vectors[name] += 1
            on_the_stack[name] += bool(STACK.search(line))
    if not uses_vectors:
        pytest.skip("the build has no symbols")
    assert len(uses_vectors) >= 8 * 10 + 4 * 6  # every type and number of tokens
    assert {n: k for n, k in on_the_stack.items() if k > MOST_ON_THE_STACK} == {}
