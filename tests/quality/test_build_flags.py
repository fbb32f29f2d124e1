"""Flags that the promises rest on: a contracted multiply-add would change a row's bits."""

import os
import platform
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest
import setuptools
from harness.core_programs import described

ROOT = Path(__file__).parents[2]
C_FILES = ROOT / "mtpcore/_ext/c"
FORBIDDEN = {
    "-Ofast",
    "-fassociative-math",
    "-fcx-limited-range",
    "-ffast-math",
    "-ffinite-math-only",
    "-ffp-model",
    "-fno-signed-zeros",
    "-freciprocal-math",
    "-fsingle-precision-constant",
    "-funsafe-math-optimizations",
    "-mrecip",
}
COMPUTE_NOTHING = {
    *("cpu.c", "fetch_choice.c", "interrupt.c", "memory.c", "pace.c", "pool.c"),
    *("clock_posix.c", "features_linux.c", "pages_linux.c", "threads_posix.c"),
    *("weight_types.c", "sorted_text.c", "text_index.c"),  # the last two of whole numbers
}
FLAGS_IN_SOURCE = re.compile(
    r"\boptimi[sz]e\s*\(|\bpragma\s+(?:STDC|clang\s+(?:fp|optimize))\b|\bfloat_control\b"
)


MACHINES = ("x86_64", "aarch64")
ALL = [*((machine, "linux") for machine in MACHINES), ("arm64", "darwin"), ("AMD64", "win32")]


@pytest.fixture
def build_on(monkeypatch):
    """Call it with a machine and a system: what setup.py hands to setuptools there."""
    for name in ("MTPCORE_DEBUG", "MTPCORE_SANITIZE"):
        monkeypatch.delenv(name, raising=False)
    return partial(described, monkeypatch)


@pytest.fixture(params=ALL, ids="-".join)
def build(request, build_on):
    return build_on(*request.param)


def flags(build):
    yield from ((name, made["cflags"]) for name, made in build["libraries"])
    yield from ((module.name, module.extra_compile_args) for module in build["ext_modules"])


def test_multiply_adds_are_never_contracted(build):
    for name, given in flags(build):
        assert "-ffp-contract=off" in given, name
        assert not any(
            flag.startswith("-ffp-contract=") for flag in set(given) - {"-ffp-contract=off"}
        ), name


def test_no_library_is_built_with_fast_math(build):
    for name, given in flags(build):
        assert not FORBIDDEN & {flag.split("=")[0] for flag in given}, name


def refused(build, flag):
    """Return the C files of this machine that do not compile with a flag before our own."""
    for _, made in build["libraries"]:
        for file in made["sources"]:
            includes = [f"-I{folder}" for folder in made["include_dirs"]]
            command = ["cc", flag, *made["cflags"], *includes, "-E", "-o", os.devnull, file]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                assert "take -ffast-math and its parts out of CFLAGS" in done.stderr
                yield Path(file).name


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_fast_math_of_the_environment_is_an_error(build_on):
    """Flags in ``CFLAGS`` come before our own."""
    build = build_on(platform.machine())
    built = {Path(file).name for _, made in build["libraries"] for file in made["sources"]}
    assert set(refused(build, "-ffast-math")) == built - COMPUTE_NOTHING
    assert next(refused(build, "-ffinite-math-only"))


def test_two_source_files_alone_change_their_flags():
    """Additions of integers are put off less there; nothing that a result depends on."""
    found = [
        f"{path.name}: {line}"
        for path in sorted((ROOT / "mtpcore/_ext").rglob("*"))
        if path.suffix in {".c", ".h", ".inc", ".pyx", ".pxd"}
        for line in path.read_text("utf-8").splitlines()
        if FLAGS_IN_SOURCE.search(line)
    ]
    assert found == [
        'chunks_avx512.c: #pragma GCC optimize("no-tree-ter")',
        'kernels_ymm.h: #pragma GCC optimize("no-tree-ter", "no-tree-reassoc")',
    ]


def test_debug_data_is_left_out_unless_it_is_asked_for(build):
    """The last of these flags decides, and Python's own come first."""
    for name, given in flags(build):
        assert [flag for flag in given if flag.startswith("-g")] == ["-g0"], name


def test_portable_library_asks_for_no_instruction_set(build):
    portable = dict(build["libraries"])["mtpcore_base"]
    assert not [flag for flag in portable["cflags"] if flag.startswith("-m")]
    of_a_set = ("_avx2.c", "_avxvnni.c", "_avx512.c", "_amx.c", "_neon.c", "_i8mm.c")
    assert not [f for f in portable["sources"] if f.endswith(of_a_set)]


def test_every_c_file_belongs_to_one_library(build_on):
    built = {
        (name, file)
        for machine, system in ALL
        for name, made in build_on(machine, system)["libraries"]
        for file in made["sources"]
    }
    on_disk = [str(f.relative_to(ROOT)) for f in C_FILES.rglob("*.c")]
    assert sorted(file for _, file in built) == sorted(on_disk)


def test_a_system_gets_its_own_files_and_no_others(build_on):
    names = {}
    for machine, system in ALL:
        portable = dict(build_on(machine, system)["libraries"])["mtpcore_base"]["sources"]
        names[system] = {Path(file).name for file in portable}
    threads = {
        system: sorted(n for n in found if n.startswith("threads"))
        for system, found in names.items()
    }
    assert threads == {
        "linux": ["threads_posix.c"],
        "darwin": ["threads_posix.c"],
        "win32": ["threads_windows.c"],
    }
    for file in ("clock", "features", "pages", "threads"):
        for system, found in names.items():
            assert len([name for name in found if name.startswith(f"{file}_")]) == 1, system


def test_another_system_is_refused_by_name(build_on):
    with pytest.raises(SystemExit, match="sunos5"):
        build_on("x86_64", "sunos5")


def test_windows_is_built_by_a_compiler_with_these_flags(build_on):
    """Microsoft's has none of them; CPython's header does not know another as one for 64 bits."""
    built = build_on("AMD64", "win32")
    (native,) = built["ext_modules"]
    assert ("MS_WIN64", None) in native.define_macros
    assert native.extra_link_args == []
    for name in ("build_clib", "build_ext"):
        command = built["cmdclass"][name](setuptools.Distribution())
        command.ensure_finalized()
        assert command.compiler == "mingw32"
