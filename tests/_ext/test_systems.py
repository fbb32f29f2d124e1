"""The C core as macOS and Windows get it: compiled by Zig, and run in Wine, if that is there.

``tests/_ext/compare`` is the program. Nothing of macOS can be run here: it is linked with the
system's library alone. For Windows it is linked only to be run: Zig then builds the runtime library
that comes with it, for a minute.
"""

import shutil
from pathlib import Path

import pytest
from harness.core_programs import build, compile_all, core_sources, described, program_sources, run

WINE = "wine"
# Zig names processors where others name families of them.
PROCESSORS = {
    "-march=armv8.2-a+dotprod": "-mcpu=generic+v8_2a+dotprod",
    "-march=armv8.2-a+dotprod+i8mm": "-mcpu=generic+v8_2a+dotprod+i8mm",
}
# Compiled alone, four times faster than with optimisation; Zig would look for undefined behaviour.
QUICKLY = ["-O0", "-fno-sanitize=undefined"]


@pytest.fixture
def build_for(monkeypatch, tmp_path):
    """Call it with what Zig, Python and Python again call a system; return the program's path.

    Without ``links`` there is none.
    """
    ziglang = pytest.importorskip("ziglang", reason="needs the extra wheels")
    zig = str(Path(ziglang.__file__).parent / "zig")

    def build_it(target, machine, system, *, link=(), links=True):
        libraries = described(monkeypatch, machine, system)["libraries"]
        own = {Path(file).name for _, made in libraries for file in made["sources"]}
        assert {"linux": "pages_linux.c", "darwin": "pages_darwin.c", "win32": "pages_windows.c"}[
            system
        ] in own
        compiler, as_zig = [zig, "cc", "-target", target], lambda flag: PROCESSORS.get(flag, flag)
        if links:
            return build(compiler, libraries, tmp_path, *QUICKLY, flag=as_zig, link=link)
        sources = [*core_sources(libraries), *program_sources(libraries)]
        return compile_all(compiler, sources, tmp_path, *QUICKLY, flag=as_zig)

    return build_it


@pytest.mark.slow
def test_macos_gets_every_instruction_set(build_for):
    link = ("-nostdlib", "-lSystem")  # without Clang's own library, which Zig would compile first
    program = Path(build_for("aarch64-macos", "arm64", "darwin", link=link))
    assert program.read_bytes()[:4] == b"\xcf\xfa\xed\xfe"  # Mach-O of 64 bits


@pytest.mark.slow
def test_windows_computes_what_portable_c_computes(build_for, tmp_path):
    has_wine = shutil.which(WINE) is not None
    program = build_for("x86_64-windows-gnu", "AMD64", "win32", links=has_wine)
    if not has_wine:
        pytest.skip(f"Windows is compiled, not run: no {WINE} (Debian: wine64)")
    assert Path(program).read_bytes()[:2] == b"MZ"
    assert " 0 wrong" in run([WINE, program], WINEPREFIX=str(tmp_path / "wine"), WINEDEBUG="-all")
