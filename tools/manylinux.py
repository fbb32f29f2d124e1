"""Build a wheel here that runs on Linux with glibc 2.28 or newer, without a container.

``python tools/manylinux.py [FOLDER]`` (default: ``dist``) needs gcc and the extra ``wheels``. A
module that gcc links asks for the symbols of this machine's glibc, which is newer. So gcc compiles,
for the same kernels as everywhere, and Zig's linker links, against the symbols that glibc 2.28 has.
auditwheel checks the wheel, and names it accordingly.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).parents[1]
GLIBC = "2.28"


def linker(compiler: str = "gcc", machine: str = platform.machine()) -> list[str]:
    """Return the command that links objects of gcc into a shared object for glibc 2.28.

    What gcc's objects need besides libc is gcc's own. Without it Zig would link its own library,
    which has another `sincos`, `log2f` and `memcpy`, too: texts could differ, and speeds would.
    """
    named = ["-print-libgcc-file-name", "-print-file-name=libc_nonshared.a"]
    libraries = [subprocess.check_output([compiler, name], text=True).strip() for name in named]
    options = ["-target", f"{machine}-linux-gnu.{GLIBC}", "-shared", "-fno-sanitize=undefined"]
    return [sys.executable, "-m", "ziglang", "cc", *options, *libraries]


def repair(wheel: Path, folder: Path) -> Path:
    """Check what a wheel needs, and put it under the name that says so into a folder.

    Raises
    ------
    SystemExit
        Its module needs symbols of a newer glibc, other libraries, or symbols of no library.
    """
    machine = wheel.stem.rpartition("linux_")[2]
    with ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as unpacked:
        for name in (name for name in archive.namelist() if name.endswith(".so")):
            if lacking := [*unbound(Path(archive.extract(name, unpacked)))]:
                sys.exit(f"{name} does not say where it finds {', '.join(lacking)}")
    to = ["--plat", f"manylinux_{GLIBC.replace('.', '_')}_{machine}", "--patcher", "none"]
    command = [sys.executable, "-m", "auditwheel", "repair", *to, "-w", str(folder), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    (made,) = folder.glob(f"{'-'.join(wheel.stem.split('-')[:-1])}-manylinux*.whl")
    return made


def unbound(module: Path) -> Iterator[str]:
    """Return names that a module needs, and that neither Python nor a library's version gives.

    auditwheel looks at versions alone: a function that glibc 2.28 lacks has none.
    """
    with module.open("rb") as stream:
        file = ELFFile(stream)
        versions = file.get_section_by_name(".gnu.version")  # absent where nothing has one
        for number, symbol in enumerate(file.get_section_by_name(".dynsym").iter_symbols()):
            needed = symbol["st_shndx"] == "SHN_UNDEF" and symbol["st_info"]["bind"] != "STB_WEAK"
            bound = versions and isinstance(versions.get_symbol(number)["ndx"], int)
            if needed and symbol.name and not bound and not symbol.name.startswith(("Py", "_Py")):
                yield symbol.name


def main(folder: Path) -> None:
    """Build the wheel, check it, and print where it is."""
    with tempfile.TemporaryDirectory() as made:
        subprocess.run(
            [sys.executable, "-m", "build", "--wheel", "--outdir", made, str(ROOT)],
            env={**os.environ, "CC": "gcc", "LDSHARED": shlex.join(linker())},
            check=True,
        )
        (wheel,) = Path(made).glob("*.whl")
        print(repair(wheel, folder))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist"))
