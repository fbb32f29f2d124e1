"""Build ``mtpcore._ext._native``: the Cython modules and the C library in one shared object.

One static library for each instruction set of the machine's family (file suffix ``_avx2.c``,
``_avxvnni.c``, ``_avx512.c``, ``_amx.c``, ``_neon.c``, ``_i8mm.c``; everything else is portable C);
which one runs is decided when the shared object is loaded. What depends on the operating system is
in files of its own, too (``_posix.c``, ``_linux.c``, ``_darwin.c``, ``_windows.c``).

Environment, all of it unset in a release:
``MTPCORE_DEBUG=1`` keeps debug data, for ``perf annotate``, ``gdb`` and ``valgrind``;
``MTPCORE_SANITIZE=address,undefined`` builds with those sanitizers, and keeps debug data too.
Object files in ``build`` are used again: remove it where one of these changes.
"""

import logging
import os
import platform
import shlex
import shutil
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from time import monotonic

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build import build
from setuptools.command.build_clib import build_clib
from setuptools.command.build_ext import build_ext
from setuptools.errors import PlatformError

ROOT = Path(__file__).parent
SOURCES = Path("mtpcore/_ext/c")
SANITIZE = os.environ.get("MTPCORE_SANITIZE", "")
# Python's own flags come first, and often ask for debug data: nine tenths of a built file.
DEBUG_DATA = "-g" if os.environ.get("MTPCORE_DEBUG", "") == "1" else "-g0"

# Contracted multiply-adds and fast-math would let one row's bits depend on its neighbours.
CFLAGS = [
    "-std=c11",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",  # nobody reads the exception flags; loops that compare get vectorised
    "-fvisibility=hidden",
    "-fno-lto",
    "-Wall",
    "-Wextra",
    "-Wno-unused-function",
    DEBUG_DATA,
]
AVX2_FLAGS = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
ISA_FLAGS = {
    "avx2": AVX2_FLAGS,
    "avxvnni": [*AVX2_FLAGS, "-mavxvnni"],
    "avx512": [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx512vnni",
        "-mavx512vbmi",
        "-mfma",
        "-mf16c",
        "-mbmi2",
        "-mprefer-vector-width=512",
    ],
    "neon": ["-march=armv8.2-a+dotprod"],
    "i8mm": ["-march=armv8.2-a+dotprod+i8mm"],
}
if sys.platform != "darwin":
    # gcc would move loads far ahead of their use until registers run out. Processors do it better.
    for isa in ("neon", "i8mm"):
        ISA_FLAGS[isa].append("-fno-schedule-insns")
ISA_FLAGS["amx"] = [*ISA_FLAGS["avx512"], "-mamx-tile", "-mamx-int8"]
ISAS = {
    "x86_64": ("avx2", "avxvnni", "avx512", "amx"),
    "AMD64": ("avx2", "avxvnni", "avx512", "amx"),
    "aarch64": ("neon", "i8mm"),
    "arm64": ("neon", "i8mm"),
}
CPU_SECONDS = 170  # of all files, on an AMD EPYC of 2024
SYSTEMS = {
    "linux": ("posix", "linux"),
    "darwin": ("posix", "darwin"),
    "win32": ("windows",),
}
if sys.platform not in SYSTEMS:
    sys.exit(f"mtpcore knows Linux, macOS and Windows, and this is {sys.platform}")
IS_WINDOWS = sys.platform == "win32"
# The usual compiler there knows neither GCC's builtins nor the flags above, and Zig brings a Clang.
ZIG = [Path(sys.executable).as_posix(), "-m", "ziglang"]
if IS_WINDOWS and not os.environ.get("CC"):
    os.environ["CC"] = shlex.join([*ZIG, "cc", "-target", "x86_64-windows-gnu"])
COMPILER = "mingw32" if IS_WINDOWS else None  # as setuptools calls those with GCC's flags
DIRECTIVES = {
    "language_level": "3",
    "boundscheck": True,  # of lists and tuples too: an index that is wrong is an error, no crash
    "nonecheck": True,
    "wraparound": False,
    "cdivision": True,
    "autotestdict": False,
    "embedsignature": True,
}
MODULE_CFLAGS = ["-std=c11", "-O2", "-ffp-contract=off", "-Wno-unused-function", DEBUG_DATA]
LINK = [] if IS_WINDOWS else ["-lm", "-pthread"]
# CPython's header knows by Microsoft's compiler alone that this is Windows of 64 bits.
MODULE_MACROS = [("MS_WIN64", None)] if IS_WINDOWS else []
if SANITIZE:
    watch = [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer", "-g1", "-O1"]
    CFLAGS, MODULE_CFLAGS = [*CFLAGS, *watch], [*MODULE_CFLAGS, *watch]
    LINK = [*LINK, f"-fsanitize={SANITIZE}"]


def c_sources(isa):
    """Return the C files of one instruction set ("" is portable C), relative to the root."""
    files = sorted((ROOT / SOURCES).rglob("*.c"))
    if isa:
        chosen = [f for f in files if f.name.endswith(f"_{isa}.c")]
    else:
        systems = {name for names in SYSTEMS.values() for name in names}
        others = {*ISA_FLAGS, *systems} - {*SYSTEMS[sys.platform]}
        chosen = [f for f in files if not f.name.endswith(tuple(f"_{name}.c" for name in others))]
    return [str(f.relative_to(ROOT)) for f in chosen]


def library(name, isa):
    """Describe one static library for setuptools' ``build_clib``."""
    headers = [
        str(f.relative_to(ROOT))
        for pattern in ("*.h", "*.inc")
        for f in sorted((ROOT / SOURCES).rglob(pattern))
    ]
    return (
        name,
        {
            "sources": c_sources(isa),
            "include_dirs": [str(SOURCES)],
            "cflags": [*CFLAGS, "-pthread", *ISA_FLAGS.get(isa, [])],
            "obj_deps": {"": headers},
        },
    )


def objects(command):
    """Return the folder of object files: in the source tree, for editable installs too.

    Installing again compiles what has changed, and what was made can be linked once more.
    """
    build = command.get_finalized_command("build")
    return str(Path(build.build_base, f"temp.{build.plat_name}-{sys.implementation.cache_tag}"))


def require_compiler():
    """Raise an error that says what to install, before anything is translated or compiled."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "")
    if compiler and shutil.which(compiler[0]) is None:
        raise PlatformError(
            f"mtpcore is compiled from C, and the compiler {compiler[0]} is not found. Install one "
            "(Debian, Ubuntu: apt install gcc libc6-dev; Fedora: dnf install gcc; macOS: "
            "xcode-select --install), or name yours in the variable CC"
        )
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if not header.exists():
        raise PlatformError(
            f"mtpcore is compiled from C, and Python's headers are not installed: no {header} "
            "(Debian, Ubuntu: apt install python3-dev; Fedora: dnf install python3-devel)"
        )


def say(command, text):
    """Print a line, as commands do: ``pip install -v`` and ``python -m build`` show it."""
    command.announce(f"mtpcore: {text}", level=logging.INFO)


def compile_side_by_side(compiler, pool):
    """Let a compiler take the sources it is given side by side."""
    compile_all = compiler.compile

    def compile_each(sources, *given, **options):
        made = pool.map(lambda source: compile_all([source], *given, **options), sources)
        return [file for files in made for file in files]

    compiler.compile = compile_each


class BuildClib(build_clib):
    """Compile the files of all libraries side by side, on as many cores as there are.

    Archives are made anew: one that is there would keep objects whose source files are gone.
    """

    def finalize_options(self):
        self.build_clib = self.build_temp = self.build_temp or objects(self)
        self.compiler = self.compiler or COMPILER
        super().finalize_options()

    def run(self):
        for archive in Path(self.build_clib).glob("*mtpcore*.a"):
            archive.unlink()
        super().run()

    def build_libraries(self, libraries):
        build_all = super().build_libraries
        if IS_WINDOWS:
            self.compiler.set_executable("archiver", [*ZIG, "ar", "-cr"])
        with (
            ThreadPoolExecutor(os.cpu_count()) as pool,
            ThreadPoolExecutor(len(ISA_FLAGS)) as waiting,
        ):
            compile_side_by_side(self.compiler, pool)
            names = {waiting.submit(build_all, [one]): one[0] for one in libraries}
            for count, done in enumerate(as_completed(names), 1):
                done.result()
                say(self, f"{names[done]} is compiled, {count} of {len(names)} C libraries")


def translate(sources):
    """Make a C file of each Cython module; return these files."""
    modules = cythonize(
        [Extension("mtpcore._ext." + Path(source).stem, [source]) for source in sources],
        build_dir="build",
        compiler_directives=DIRECTIVES,
        include_path=["."],
    )
    return [source for module in modules for source in module.sources]


class Build(build):
    """Leave the C libraries to ``BuildExt``, which does something else beside."""

    sub_commands = tuple(command for command in build.sub_commands if command[0] != "build_clib")


class BuildExt(build_ext):
    """Build the C libraries first, also for a bare ``build_ext --inplace``; then all modules.

    Modules are translated to C beside the former, which leaves no core idle.
    """

    def finalize_options(self):
        self.build_temp = self.build_temp or objects(self)
        self.compiler = self.compiler or COMPILER
        super().finalize_options()

    def run(self):
        (native,) = self.extensions
        begin = monotonic()
        require_compiler()
        files = sum(len(made["sources"]) for _, made in self.distribution.libraries)
        cores = os.cpu_count()
        say(
            self,
            f"compiling {files} C files and {len(native.sources)} Cython modules on {cores} cores. "
            f"If all of them are new, this takes about {CPU_SECONDS / cores / 60:.1f} minutes",
        )
        with ThreadPoolExecutor(1) as beside:
            libraries = beside.submit(self.run_command, "build_clib")
            native.sources = translate(native.sources)
            say(self, f"{len(native.sources)} Cython modules are translated to C")
            libraries.result()
        super().run()
        say(self, f"compiled and linked in {monotonic() - begin:.0f} seconds")

    def build_extensions(self):
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compile_side_by_side(self.compiler, pool)
            super().build_extensions()


if sys.platform == "darwin":  # Python's own flags may ask for two families of processors at once
    os.environ.setdefault("ARCHFLAGS", f"-arch {platform.machine()}")
libraries = [library("mtpcore_base", "")]
libraries += [library(f"mtpcore_{isa}", isa) for isa in ISAS.get(platform.machine(), ())]
# One C file for each module, all linked into one shared object; mtpcore/_ext/__init__.py finds the
# modules in it.
native = Extension(
    "mtpcore._ext._native",
    [str(pyx.relative_to(ROOT)) for pyx in sorted((ROOT / "mtpcore/_ext").glob("*.pyx"))],
    include_dirs=[str(SOURCES)],
    define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"), *MODULE_MACROS],
    extra_compile_args=MODULE_CFLAGS,
    extra_link_args=LINK,
    depends=[
        str(file.relative_to(ROOT))
        for file in sorted((ROOT / "mtpcore/_ext").rglob("*.*"))
        if file.suffix in {".pyx", ".pxd", ".c", ".h", ".inc"}
    ],
)
# First-party plugins are distributions of their own; the main one brings them along.
plugins = {
    file.parent.name: str(file.parent.relative_to(ROOT))
    for file in sorted((ROOT / "plugins").glob("*/mtpcore_*/__init__.py"))
}
setup(
    packages=[*find_packages(include=["mtpcore", "mtpcore.*"]), *plugins],
    package_dir=plugins,
    libraries=libraries,
    ext_modules=[native],
    cmdclass={"build": Build, "build_clib": BuildClib, "build_ext": BuildExt},
)
