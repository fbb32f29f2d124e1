"""What the CUDA kernels take of each architecture; no GPU is needed.

    python benchmarks/cuda_kernels.py

compiles every kernel in every variant for every architecture that kernels are held to, and writes
registers of a thread, shared memory of a block and spilled bytes into
``benchmarks/results/cuda_kernels.md``. A kernel whose text is that of its line there, compiled by
the same NVRTC, keeps the line. Where a kernel spills, makes the compiler warn, or takes more than
the budget, it ends with an error and writes nothing.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gguf import GGMLQuantizationType as Type

from mtpcore.backends.cuda.compile import ARCHITECTURES, Kernel, Resources, import_cuda, measure
from mtpcore.backends.cuda.launch import KERNELS
from mtpcore.backends.cuda.layout import FORMATS

RESULT = Path(__file__).parent / "results" / "cuda_kernels.md"

MOST_REGISTERS = 128
"""Of a kernel for few rows: two blocks of 256 threads on a multiprocessor."""
MOST_REGISTERS_WIDE = 255
"""Of a kernel for many rows, which one block keeps busy, or for states of wide keys."""
MOST_SHARED = 16 << 10
MOST_SHARED_ATTENTION = 48 << 10
"""Two blocks on a multiprocessor of any device, with queries, weights and values at hand."""
MOST_SHARED_SORT = 40 << 10
"""Of the one block that sorts slots by their experts."""
MOST_SHARED_RING = 72 << 10
"""Of a kernel that lets weights come through it: three blocks fit where there is most."""

TITLE = """# What the CUDA kernels take

Written by `python benchmarks/cuda_kernels.py` with NVRTC {version}, without a GPU.

Registers of a thread, for each architecture; bytes of shared memory of a block; bytes that a
thread keeps in memory for want of registers. The budget is {narrow} registers ({wide} for products
of many rows, with tiles of 2 x 4, and for delta rules with keys of more than 128 entries) and
{shared} bytes of shared memory ({attention} for attention, {sort} for the block that sorts slots by
their experts, {ring} for products of few rows, whose weights come through it); nothing is spilled,
and nothing makes the compiler warn. A line is that of the kernel whose text, without comments, has
these first digits of SHA-256.
"""
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def label(kernel: Kernel) -> str:
    """Return a kernel's variant in words: a type and its tiles, or the macros."""
    for kind, layout in FORMATS.items():
        if kernel.name == "matmul" and kernel.defines[:-3] == layout.defines():
            rows, tokens, eighths = (number for _, number in kernel.defines[-3:])
            return f"{Type(kind).name}, {rows} x {tokens}" + (", long" if eighths > "1" else "")
        if kernel.name == "matmul_few" and kernel.defines[:-2] == layout.defines():
            return f"{Type(kind).name}, {kernel.defines[-2][1]} stages"
    return ", ".join(f"{key} {value}" for key, value in kernel.defines)


def faults(kernel: Kernel, taken: Resources) -> Iterator[str]:
    """Say what is wrong with a compiled kernel."""
    is_wide = kernel.name == "matmul" or ("ENTRIES", "64") in kernel.defines
    has_ring = kernel.name == "matmul_few"
    if taken.warnings:
        yield f"warnings: {taken.warnings}"
    if taken.spilled:
        yield f"{taken.spilled} bytes spilled"
    if taken.registers > (MOST_REGISTERS_WIDE if is_wide else MOST_REGISTERS):
        yield f"{taken.registers} registers"
    of_kernel = {"attention": MOST_SHARED_ATTENTION}
    of_kernel |= dict.fromkeys(("group", "route_few"), MOST_SHARED_SORT)
    most_shared = of_kernel.get(kernel.name, MOST_SHARED)
    if taken.shared > (MOST_SHARED_RING if has_ring else most_shared):
        yield f"{taken.shared} bytes of shared memory"


def digits(kernel: Kernel) -> str:
    """Return what stands for a kernel's text; comments and white space change nothing."""
    text = " ".join(COMMENT.sub(" ", f"{kernel} {kernel.source}").split())
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def line(kernel: Kernel) -> str:
    """Return a kernel's line of the table; a ValueError says what is wrong with it."""
    text = digits(kernel)
    taken = {name: measure(kernel, name) for name in ARCHITECTURES}
    wrong = [f"{kernel} for {name}: {f}" for name in taken for f in faults(kernel, taken[name])]
    if wrong:
        raise ValueError("\n".join(wrong))
    each = taken.values()
    registers = [str(resources.registers) for resources in each]
    most = [str(max(getattr(resources, of) for resources in each)) for of in ("shared", "spilled")]
    return row(kernel.name, label(kernel), *registers, *most, text)


def row(*cells: str) -> str:
    """Return one line of a table."""
    return f"| {' | '.join(cells)} |"


def main() -> str:
    """Compile what has changed and write the table; return what is wrong."""
    nvrtc = import_cuda("cuda.bindings.nvrtc")
    title = TITLE.format(
        version=".".join(str(number) for number in nvrtc.nvrtcVersion()[1:]),
        narrow=MOST_REGISTERS,
        wide=MOST_REGISTERS_WIDE,
        shared=MOST_SHARED,
        attention=MOST_SHARED_ATTENTION,
        sort=MOST_SHARED_SORT,
        ring=MOST_SHARED_RING,
    )
    written = RESULT.read_text()
    kept = written.splitlines() if written.startswith(title) else []
    import_cuda("cuda.core")  # threads would find it imported in part
    known = {line.split(" | ")[-1].rstrip(" |"): line for line in kept}
    with ThreadPoolExecutor() as pool:
        made = [
            (digits(kernel), None if digits(kernel) in known else pool.submit(line, kernel))
            for kernel in KERNELS
        ]
    if wrong := [str(job.exception()) for _, job in made if job and job.exception()]:
        return "\n".join(wrong)
    names = ["kernel", "variant", *ARCHITECTURES, "shared", "spilled", "text"]
    lines = [job.result() if job else known[text] for text, job in made]
    table = [row(*names), row(*["---"] * len(names)), *lines]
    RESULT.write_text("\n".join([title, *table, ""]))
    return ""


if __name__ == "__main__":
    sys.exit(main() or 0)
