"""What the inner loops of the matmul kernels cost on processors that are not at hand.

    python benchmarks/inner_loops.py

compiles the kernels to assembly, takes the innermost loop of each, and asks llvm-mca (of LLVM 18 or
newer, which knows Zen 4 and 5) how many cycles an iteration takes where all data lie in the
first-level cache. The loop's multiply instructions tell how many weights it works off, and so how
many bytes of packed weights it takes in a cycle. Beside that stands what one core draws from memory
in a cycle (``MEMORY``): a kernel below that, printed bold, is bound by arithmetic there. What lies
outside the innermost loop (scales of a block, the ends of rows) is not counted, so a figure is a
bound from above.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "mtpcore" / "_ext" / "c"
# Skylake-X and Cascade Lake have no VBMI, so they use ``avx2``.
PROCESSORS = {
    "avx2": (
        *("znver2", "znver3", "znver4", "znver5"),
        *("haswell", "skylake", "skylake-avx512", "alderlake"),
    ),
    "avxvnni": ("znver5", "alderlake"),
    "avx512": ("znver4", "znver5", "icelake-server", "sapphirerapids"),
    "neon": ("neoverse-n1", "neoverse-v1", "neoverse-v2", "apple-m1"),
    "i8mm": ("neoverse-v1", "neoverse-v2", "apple-m2"),  # the models of M1 and M2 are the same
}
COMPILERS = dict.fromkeys(("neon", "i8mm"), "aarch64-linux-gnu-gcc")
TARGETS = dict.fromkeys(("neon", "i8mm"), "aarch64")


class Memory(NamedTuple):
    """What one core reads from memory while it runs at so many gigahertz."""

    gigabytes: float
    gigahertz: float
    source: str

    @property
    def bytes_a_cycle(self) -> float:
        """What a loop has to work off in a cycle to keep up."""
        return self.gigabytes / self.gigahertz


_ALL = "all that memory gives (vendor's specification of {}); one core alone was not measured"
_ARM = "one core of {}, learn.arm.com, Memory subsystem, bandwidth sweep"
_ZEN_5 = Memory(27.5, 3.8, "half of what two cores read here, at best (limits.md; clock: peak.c)")
_XEON = Memory(12.7, 2.1, "half of what two cores of a Xeon read here (matmul.md; clock: peak.c)")
_M1 = Memory(50, 3.2, "one core of an M1, zsmith.co/bandwidth")
_GRAVITON_4 = Memory(37.0, 2.8, _ARM.format("Graviton4"))
MEMORY = {
    "znver2": Memory(51.2, 4.4, _ALL.format("Ryzen 7 3700X, DDR4-3200")),
    "znver3": Memory(51.2, 4.7, _ALL.format("Ryzen 7 5800X, DDR4-3200")),
    "znver4": Memory(25, 3.5, "a product of one thread here (clock: peak.c)"),
    "znver5": _ZEN_5,
    "haswell": Memory(
        19.9, 3.5, "STREAM, one thread of a Xeon E5-2690 v3, McCalpin, Intel's forum"
    ),
    "skylake": Memory(34.1, 4.2, _ALL.format("Core i7-6700K, DDR4-2133")),
    "skylake-avx512": Memory(12, 3.8, "STREAM, one thread of a Xeon 8176, AnandTech 11544"),
    "alderlake": Memory(76.8, 5.2, _ALL.format("Core i9-12900K, DDR5-4800")),
    "icelake-server": _XEON._replace(source="that of sapphirerapids; none was found"),
    "sapphirerapids": _XEON,
    "neoverse-n1": Memory(20.9, 2.5, _ARM.format("Graviton2")),
    "neoverse-v1": _GRAVITON_4._replace(source="that of neoverse-v2; none was found"),
    "neoverse-v2": _GRAVITON_4,
    "apple-m1": _M1,
    "apple-m2": _M1._replace(source="that of apple-m1; none was found"),
}
# Multiply-adds of an instruction, by the width in bytes of the register that it writes. Integer
# ones multiply bytes; those that scale sums (vpmaddwd, vpdpwssd) work off no weights.
BYTE_PRODUCTS = re.compile(
    r"^\s+(?:\{vex\} )?(vpmaddubsw|vpdpbusds?|sdot|usdot|smmla|usmmla)\b(.*)"
)
FLOAT_PRODUCTS = re.compile(r"^\s+(vfmadd\w+ps|fmla)\b(.*)")
_ITERATIONS = 200
TYPE = re.compile(r"X\(argument, \w+, (\w+), \d+, (\d+), (\d+), \w+\)")


class Kernel(NamedTuple):
    """The innermost loop of a kernel for so many tokens."""

    type: str
    n_tokens: int
    body: list[str]

    @property
    def n_products(self) -> int:
        """Multiply-adds of an iteration."""
        is_float = self.type in ("f32", "f16", "bf16")
        found = filter(None, map((FLOAT_PRODUCTS if is_float else BYTE_PRODUCTS).match, self.body))
        return sum(_width(match[2], match[1]) // (4 if is_float else 1) for match in found)

    @property
    def n_weights(self) -> float:
        """Weights of an iteration; I8MM multiplies the last of an odd number of tokens twice."""
        in_pairs = any("mmla" in line for line in self.body)
        return self.n_products / (self.n_tokens + (self.n_tokens % 2 if in_pairs else 0))


def _width(operands: str, name: str) -> int:
    if "mmla" in name:
        return 32  # 2 x 2 results of 8 products
    if "zmm" in operands:
        return 64
    return 32 if "ymm" in operands else 16


def main() -> None:
    """Print what memory gives, and one table for each instruction set."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 2, 3, 4])
    parser.add_argument("--types", nargs="+")
    parser.add_argument("--mca", default=_newest_mca(), help="default: %(default)s")
    given = parser.parse_args()
    if given.mca is None:
        sys.exit("llvm-mca is not installed; Debian has it in llvm-19")
    flags = _setup()
    print("\n".join(_memory_table()))
    for isa, processors in PROCESSORS.items():
        if isa not in flags.ISA_FLAGS:
            continue
        compiler = COMPILERS.get(isa, "gcc")
        if shutil.which(compiler) is None:
            print(f"\n{isa}: {compiler} is not installed")
            continue
        print(f"\n## {isa}: bytes of packed weights a cycle\n")
        print("| type | tokens |", " | ".join(processors), "|")
        print("| --- " * (2 + len(processors)) + "|")
        drawn = " | ".join(f"{MEMORY[name].bytes_a_cycle:.1f}" for name in processors)
        print(f"| memory, one core | | {drawn} |")
        for kernel in _kernels(isa, compiler, [*flags.CFLAGS, *flags.ISA_FLAGS[isa]]):
            if kernel.n_tokens in given.tokens and kernel.type in (given.types or [kernel.type]):
                with ThreadPoolExecutor() as pool:
                    speeds = pool.map(partial(_speed, given.mca, isa, kernel), processors)
                cells = " | ".join(map(_cell, speeds, processors))
                print(f"| {kernel.type.upper()} | {kernel.n_tokens} | {cells} |", flush=True)


def _memory_table() -> Iterator[str]:
    yield "\n## What one core draws from memory\n"
    yield "| processor | GB/s | GHz | bytes a cycle | where from |"
    yield "| --- | --- | --- | --- | --- |"
    for name, memory in MEMORY.items():
        speed, clock, source = memory
        yield f"| {name} | {speed:g} | {clock:g} | {memory.bytes_a_cycle:.1f} | {source} |"


def _cell(speed: float | None, processor: str) -> str:
    """Return what is said of a loop: bold where memory gives a core more than that."""
    if speed is None:
        return "no model"
    is_bound = speed < MEMORY[processor].bytes_a_cycle
    return f"**{speed:.1f}**" if is_bound else f"{speed:.1f}"


def _newest_mca() -> str | None:
    names = (f"llvm-mca-{version}" for version in range(30, 17, -1))
    return next(filter(shutil.which, (*names, "llvm-mca")), None)


def _setup() -> ModuleType:
    """Return setup.py as a module that builds nothing, for its flags."""
    text = (ROOT / "setup.py").read_text("utf-8")
    spec = importlib.util.spec_from_loader("setup_flags", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(ROOT / "setup.py")
    exec(compile(text.split("\nsetup(")[0], "setup.py", "exec"), module.__dict__)
    return module


def _kernels(isa: str, compiler: str, flags: list[str]) -> Iterator[Kernel]:
    """Compile the kernels of an instruction set; yield the loop of each, in order of types."""
    loops: dict[tuple[str, int], list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted((SOURCES / "matmul").glob(f"*_{isa}.c")):
            assembly = Path(folder) / f"{source.stem}.s"
            command = [compiler, *flags, f"-I{SOURCES}", "-S", "-o", str(assembly), str(source)]
            subprocess.run(command, check=True)
            loops |= find_loops(assembly.read_text())
    for name in bytes_of_types():
        for n_tokens in range(1, 9):
            if body := loops.get((name, n_tokens)):
                yield Kernel(name, n_tokens, body)


def find_loops(assembly: str) -> dict[tuple[str, int], list[str]]:
    """Return the innermost loop with most multiplications, by type and number of tokens."""
    loops: dict[tuple[str, int], list[str]] = {}
    function: tuple[str, int] | None = None
    labels: dict[str, int] = {}
    lines = assembly.splitlines()
    for at, line in enumerate(lines):
        if start := re.match(r"([a-z][a-z0-9_]*?)_(\d)(?:\.\w+)*:$", line):
            function, labels = (start[1], int(start[2])), {}
        elif label := re.match(r"(\.L\w+):", line):
            labels[label[1]] = at
        jump = re.match(r"\s+(?:j\w+|b\.?\w*|cbn?z\s+\w+,|tbn?z\s+\w+, #?\d+,)\s+(\.L\w+)", line)
        if function is None or not jump or jump[1] not in labels:
            continue
        begin = labels[jump[1]]
        inner = (name for name, other in labels.items() if begin < other < at)
        if any(_closes(lines[labels[name] : at], name) for name in inner):
            continue  # a loop within it is the innermost one
        body = [text for text in lines[begin + 1 : at + 1] if not re.match(r"\s*\.|\S+:", text)]
        best = Kernel(*function, loops.get(function, []))
        if Kernel(*function, body).n_products > best.n_products:
            loops[function] = body
    return loops


def _closes(lines: list[str], label: str) -> bool:
    return any(re.search(rf"\s{re.escape(label)}$", line) for line in lines)


def bytes_of_types() -> dict[str, float]:
    """Return the bytes of a weight in the file, by the name of its type."""
    text = (SOURCES / "matmul" / "weight_types.h").read_text("utf-8")
    return {name: int(size) / int(block) for name, block, size in TYPE.findall(text)}


def _speed(mca: str, isa: str, kernel: Kernel, processor: str) -> float | None:
    """Return bytes a cycle; None where llvm-mca has no model of the processor or an instruction.

    gcc writes bytes like -16 as numbers of 64 bits, which llvm-mca does not take for bytes.
    """
    target = TARGETS.get(isa, "x86_64")
    loop = re.sub(r"0xf{14}(?=..$)", "0x", "\n".join(kernel.body[:-1]), flags=re.MULTILINE)
    run = subprocess.run(
        [mca, f"-mtriple={target}", f"-mcpu={processor}", f"-iterations={_ITERATIONS}"],
        input=loop + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    cycles = re.search(r"Total Cycles:\s+(\d+)", run.stdout)
    if cycles is None:
        return None
    return kernel.n_weights * bytes_of_types()[kernel.type] * _ITERATIONS / int(cycles[1])


if __name__ == "__main__":
    main()
