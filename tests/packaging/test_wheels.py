"""Wheels: the one that is built here runs where it promises, and which ones a release has."""

import platform
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from harness.released import install_alone, lacking

ROOT = Path(__file__).parents[2]
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["cibuildwheel"]


@pytest.mark.slow
def test_manylinux_wheel_needs_old_symbols_alone(manylinux_wheel, tmp_path):
    """As GNU's tools see it; auditwheel gave it the name."""
    assert f"manylinux_2_28_{platform.machine()}.whl" in manylinux_wheel.name
    with zipfile.ZipFile(manylinux_wheel) as archive:
        (name,) = (name for name in archive.namelist() if ".so" in name)
        module = archive.extract(name, tmp_path)
    loaded = subprocess.check_output(["objdump", "-p", module], text=True)
    libraries = set(re.findall(r"NEEDED +(\S+?)\.so", loaded))
    assert libraries <= {"libc", "libm", "libpthread", "ld-linux-x86-64", "ld-linux-aarch64"}
    assert not re.search("RPATH|RUNPATH", loaded)
    symbols = subprocess.check_output(["objdump", "-T", module], text=True)
    versions = re.findall(r"GLIBC_2\.(\d+)", symbols)
    assert 17 <= max(map(int, versions)) <= 28
    # Zig's own library would bring sines, logarithms and copies of its own.
    assert re.search(r"\*UND\*.*GLIBC_2\.2\.5\)? +sincos$", symbols, re.M)
    assert "compiler_rt" not in subprocess.check_output(["nm", module], text=True)


def test_module_of_these_tests_names_the_library_of_each_function():
    """Without the mathematical library's it loads only into programs that have loaded it."""
    pytest.importorskip("elftools", reason="no pyelftools, which the extra `wheels` brings")
    import manylinux

    (module,) = (ROOT / "mtpcore" / "_ext").glob("_native*.so")
    assert [*manylinux.unbound(module)] == []


def test_what_is_linked_as_usual_is_refused(tmp_path):
    """The check would say so if a module asked for a newer glibc, or named no library."""
    if missing := lacking():
        pytest.skip(f"no {missing}")
    import manylinux

    source, module = tmp_path / "a.c", tmp_path / "a.so"
    source.write_text(
        "double sin(double); int absent(void); double f(void) { return sin(absent()); }"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", module], check=True)
    assert {*manylinux.unbound(module)} == {"sin", "absent"}
    wheel = tmp_path / f"a-1-cp311-cp311-linux_{platform.machine()}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(module, "a.so")
    with pytest.raises(
        SystemExit, match=r"a\.so does not say where it finds (absent, sin|sin, absent)"
    ):
        manylinux.repair(wheel, tmp_path)


@pytest.mark.slow
def test_wheel_works_in_an_empty_environment(dist, request, tmp_path):
    """With what it requires, and no compiler; a release's wheel where one can be made."""
    wheel = next(dist.glob("*.whl")) if lacking() else request.getfixturevalue("manylinux_wheel")
    python = install_alone(wheel, tmp_path / "environment")
    done = subprocess.run(
        [python, Path(__file__).parent / "installed.py"],
        cwd=tmp_path,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^mtpcore [\d.]+ on .+, instruction sets base", done.stdout, re.M)


@pytest.mark.parametrize(
    ("system", "platforms"),
    [
        ("linux", ["manylinux_x86_64", "manylinux_aarch64"]),
        ("macos", ["macosx_arm64"]),
        ("windows", ["win_amd64"]),
    ],
)
def test_a_release_has_a_wheel_for_each_python_and_platform(system, platforms, tmp_path):
    pytest.importorskip("cibuildwheel", reason="no cibuildwheel, which the extra `wheels` brings")
    command = [sys.executable, "-m", "cibuildwheel", "--print-build-identifiers"]
    done = subprocess.run(
        [*command, "--platform", system, ROOT],
        env={"PATH": sysconfig.get_path("scripts")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pythons = ("cp311", "cp312", "cp313", "cp314")
    assert {*done.stdout.split()} == {f"{p}-{name}" for p in pythons for name in platforms}


def test_wheels_are_tested_by_the_checks_that_run_here():
    (script,) = re.findall(r"\{project\}/(\S+)", CONFIGURATION["test-command"])
    assert ROOT / script == Path(__file__).parent / "installed.py"
    linux = [CONFIGURATION["linux"][f"manylinux-{name}-image"] for name in ("x86_64", "aarch64")]
    assert linux == ["manylinux_2_28"] * 2
