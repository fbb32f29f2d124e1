"""The C core as setup.py describes it for a machine and a system, in the program that compares it.

``tests/_ext/compare`` is that program. It is built here by any compiler.
"""

import os
import platform
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import Cython.Build  # noqa: F401  # here, while the system is still the real one
import setuptools
import setuptools.command.build_clib
import setuptools.command.build_ext

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests/_ext/compare"
STRICT = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
# Small, and a quarter of what the program runs with -Og: it is compiled for a second longer, and
# an emulator runs it nine seconds less.
RUN_OFTEN = ["kernels_portable.c"]


def described(monkeypatch, machine, system=sys.platform):
    """Return what setup.py hands to setuptools on a machine, with nothing built."""
    found = {}
    with monkeypatch.context() as patch:
        patch.chdir(ROOT)
        for name in ("ARCHFLAGS", "CC"):  # what setup.py sets on other systems would stay
            patch.setenv(name, os.environ.get(name, ""))
        patch.setattr(platform, "machine", lambda: machine)
        patch.setattr(sys, "platform", system)
        patch.setattr(setuptools, "setup", lambda **given: found.update(given))
        runpy.run_path(str(ROOT / "setup.py"))
    return found


def core_sources(libraries):
    """Return the core's files and their flags."""
    return [(source, made["cflags"]) for _, made in libraries for source in made["sources"]]


def program_sources(libraries):
    """The program's own files and their flags: ``functions_SET.c`` has those of its set.

    Those of a system are taken where the core has files of that system, too.
    """
    flags = {name.removeprefix("mtpcore_"): made["cflags"] for name, made in libraries}
    for source in dict(libraries)["mtpcore_base"]["sources"]:
        flags.setdefault(Path(source).stem.partition("_")[2], flags["base"])
    for source in sorted(PROGRAM.glob("*.c")):
        kind = source.stem.partition("_")[2] or "base"
        if kind in flags:
            yield str(source), flags[kind]


def build(
    compiler, libraries, folder, *last, core=None, flag=lambda flag: flag, link=("-lm", "-pthread")
):
    """Compile everything and link it with these last flags; return the program.

    As ``compile_all``; where objects of the ``core`` are there, the program's own files alone.
    """
    sources = [*(core_sources(libraries) if core is None else ()), *program_sources(libraries)]
    objects = [*(core or ()), *compile_all(compiler, sources, folder, *last, flag=flag)]
    compiler = [compiler] if isinstance(compiler, str) else compiler
    program = str(folder / "compare")
    # What watches memory in a sanitizer's build has to be linked as well.
    watch = [flag for flag in libraries[0][1]["cflags"] if flag.startswith("-fsanitize=")]
    run([*compiler, *last, *watch, *objects, "-o", program, *link])
    return program


def compile_all(compiler, sources, folder, *last, flag=lambda flag: flag):
    """Compile files with their flags, warnings as errors, and these last flags; return the objects.

    ``flag`` gives what a compiler calls a flag of setup.py. With -Og: it takes half the time of
    -O1, and warns of the same. Files that are run often are compiled with -O2.
    """
    compiler = [compiler] if isinstance(compiler, str) else compiler
    includes = ["-Imtpcore/_ext/c", f"-I{PROGRAM}"]

    def compile_one(numbered):
        number, (source, flags) = numbered
        made = folder / f"{number}.o"
        level = "-O2" if Path(source).name in RUN_OFTEN else "-Og"
        flags = [*map(flag, flags), *STRICT, level, *last]
        run([*compiler, *flags, *includes, "-c", source, "-o", str(made)])
        return str(made)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, enumerate(sources)))


def run(command, code=0, **environment):
    """Run a command in the root, which must end with this exit code; return its output."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout
