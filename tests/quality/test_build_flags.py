"""Flags that the promises rest on: a contracted multiply-add would change a row's bits."""

import runpy
from pathlib import Path

import Cython.Build
import pytest
import setuptools

ROOT = Path(__file__).parents[2]
FORBIDDEN = {"-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-fassociative-math"}


@pytest.fixture
def build(monkeypatch):
    """What setup.py hands to setuptools, with nothing built."""
    found = {}
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("MTPCORE_SANITIZE", raising=False)
    monkeypatch.setattr(setuptools, "setup", lambda **given: found.update(given))
    monkeypatch.setattr(Cython.Build, "cythonize", lambda modules, **options: modules)
    runpy.run_path(str(ROOT / "setup.py"))
    return found


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
        assert not FORBIDDEN & set(given), name


def test_portable_library_asks_for_no_instruction_set(build):
    portable = dict(build["libraries"])["mtpcore_base"]
    assert not [flag for flag in portable["cflags"] if flag.startswith("-m")]
    assert not [f for f in portable["sources"] if f.endswith(("_avx2.c", "_avx512.c"))]


def test_every_c_file_belongs_to_one_library(build):
    built = [file for _, made in build["libraries"] for file in made["sources"]]
    on_disk = [str(f.relative_to(ROOT)) for f in (ROOT / "mtpcore/_ext/c").rglob("*.c")]
    assert sorted(built) == sorted(on_disk)
