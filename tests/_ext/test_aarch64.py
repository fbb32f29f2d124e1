"""What instruction sets compute, compared by a C program without Python: here, and as aarch64.

The program is built for this machine, and with a cross compiler for aarch64, where it runs in
``qemu-aarch64`` (Debian: ``gcc-aarch64-linux-gnu``, ``qemu-user``).
"""

import platform
import shutil

import pytest
from harness.core_programs import build, compile_all, core_sources, described, run
from harness.released import OBJECTS

CROSS, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
# scripts/sanitize looks for overflows on x86-64 only.
TRAPS = ["-fsanitize=signed-integer-overflow", "-fsanitize-undefined-trap-on-error"]


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names the sets of x86-64")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to compare the sets with")
def test_sets_of_this_machine_compute_what_portable_c_computes(monkeypatch, tmp_path):
    """As they were built for these tests, where their objects are there; what is shipped."""
    libraries = described(monkeypatch, "x86_64")["libraries"]
    sources = core_sources(libraries)
    built = [(OBJECTS / source).with_suffix(".o") for source, _ in sources]
    core = built if all(object.exists() for object in built) else None
    if core:
        compile_all("gcc", sources, tmp_path, "-fsyntax-only")
    assert " 0 wrong" in run([build("gcc", libraries, tmp_path, core=core)])


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which(CROSS) is None,
    reason=f"nothing of aarch64 is compiled or run: no {CROSS} (Debian: gcc-aarch64-linux-gnu)",
)
def test_neon_computes_what_portable_c_computes(monkeypatch, tmp_path):
    libraries = described(monkeypatch, "aarch64")["libraries"]
    program = build(CROSS, libraries, tmp_path, "-static", *TRAPS)
    if shutil.which(EMULATOR) is None:
        pytest.skip(f"aarch64 is compiled, not run: no {EMULATOR} (Debian: qemu-user)")
    assert " 0 wrong" in run([EMULATOR, "-cpu", "max", program, "neon", "i8mm"])
    # One processor has dot products alone, one not even these.
    assert "no instruction set i8mm" in run([EMULATOR, "-cpu", "neoverse-n1", program, "i8mm"], 2)
    assert "no instruction set neon" in run([EMULATOR, "-cpu", "cortex-a72", program, "neon"], 2)
