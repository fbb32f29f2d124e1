"""What instruction sets compute, compared by a C program without Python: here, and as aarch64.

``tests/_ext/compare`` is the program. It is built for this machine, and with a cross compiler for
aarch64, where it runs in ``qemu-aarch64`` (Debian: ``gcc-aarch64-linux-gnu``, ``qemu-user``).
"""

import os
import platform
import runpy
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import setuptools

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "compare"
CROSS, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
STRICT = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
# scripts/sanitize looks for overflows on x86-64 only.
TRAPS = ["-fsanitize=signed-integer-overflow", "-fsanitize-undefined-trap-on-error"]


@pytest.fixture
def libraries(monkeypatch):
    """What setup.py builds on a machine."""

    def of(machine):
        found = {}
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(platform, "machine", lambda: machine)
        monkeypatch.setattr(setuptools, "setup", lambda **given: found.update(given))
        runpy.run_path(str(ROOT / "setup.py"))
        return found["libraries"]

    return of


def program_sources(libraries):
    """The program's own files and their flags: ``functions_SET.c`` has those of its set."""
    flags = {name.removeprefix("mtpcore_"): made["cflags"] for name, made in libraries}
    for source in sorted(PROGRAM.glob("*.c")):
        isa = source.stem.partition("_")[2] or "base"
        if isa in flags:
            yield str(source), flags[isa]


def build(compiler, libraries, folder, *last):
    """Compile everything with warnings as errors, and with these last flags; return the program.

    With -Og: it takes half the time of -O1, and warns of the same.
    """
    includes = ["-Imtpcore/_ext/c", f"-I{PROGRAM}"]
    jobs = [(source, made["cflags"]) for _, made in libraries for source in made["sources"]]
    jobs += program_sources(libraries)

    def compile_one(job):
        number, (source, flags) = job
        made = folder / f"{number}.o"
        run([compiler, *flags, *STRICT, "-Og", *last, *includes, "-c", source, "-o", str(made)])
        return str(made)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, enumerate(jobs)))
    program = str(folder / "compare")
    # What watches memory in a sanitizer's build has to be linked as well.
    watch = [flag for flag in libraries[0][1]["cflags"] if flag.startswith("-fsanitize=")]
    run([compiler, *last, *watch, *objects, "-o", program, "-lm", "-pthread"])
    return program


def run(command, code=0):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names the sets of x86-64")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to compare the sets with")
def test_sets_of_this_machine_compute_what_portable_c_computes(libraries, tmp_path):
    assert " 0 wrong" in run([build("gcc", libraries("x86_64"), tmp_path)])


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which(CROSS) is None,
    reason=f"nothing of aarch64 is compiled or run: no {CROSS} (Debian: gcc-aarch64-linux-gnu)",
)
def test_neon_computes_what_portable_c_computes(libraries, tmp_path):
    program = build(CROSS, libraries("aarch64"), tmp_path, "-static", *TRAPS)
    if shutil.which(EMULATOR) is None:
        pytest.skip(f"aarch64 is compiled, not run: no {EMULATOR} (Debian: qemu-user)")
    assert " 0 wrong" in run([EMULATOR, "-cpu", "max", program, "neon", "i8mm"])
    # One processor has dot products alone, one not even these.
    assert "no instruction set i8mm" in run([EMULATOR, "-cpu", "neoverse-n1", program, "i8mm"], 2)
    assert "no instruction set neon" in run([EMULATOR, "-cpu", "cortex-a72", program, "neon"], 2)
