"""What the core knows of the processor, beside what the operating system says."""

import platform
import shutil
import subprocess

import pytest

from mtpcore._ext import _cpu


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="a constant elsewhere")
@pytest.mark.skipif(shutil.which("getconf") is None, reason="needs getconf")
def test_size_of_the_first_level_cache():
    asked = ["getconf", "LEVEL1_DCACHE_SIZE"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if said in ("", "0", "undefined"):
        pytest.skip("the operating system does not say it")
    assert _cpu.first_level_bytes() == int(said)
