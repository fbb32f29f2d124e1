"""Where the time of the CUDA kernels goes on paper; no GPU is needed.

    python benchmarks/cuda_costs.py

compiles the kernels, disassembles them, counts what their loops do, and holds that against
published figures of GPUs (``costs/gpus.py``): what bounds each product and each launch, and how
long tokens, rounds and prompts take. It writes ``benchmarks/results/cuda_costs.md``. Nothing in it
was measured. It needs nvdisasm, of the CUDA toolkit or by ``pip install nvidia-cuda-nvdisasm``, and
``benchmarks/results/cuda_kernels.md`` as it is for these kernels.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
from costs.gpus import GPUS, LOADED, MEASURED_COPY, Gpu
from costs.launches import MODELS, Recorded, Recorder, packed_shapes, passes, write_hole
from costs.model import Launched, Price, price, resident
from costs.sass import Code, disassemble, find_disassembler
from costs.work import OF_KERNEL, is_followed, launched, norm_behind, of_most
from cuda_kernels import RESULT as KERNEL_TABLE
from cuda_kernels import label
from gguf import GGMLQuantizationType as Type

from mtpcore.backends.cuda.compile import Kernel, compile_kernel
from mtpcore.backends.cuda.launch import KERNELS, LAUNCHERS
from mtpcore.backends.cuda.launch.step import Step
from mtpcore.backends.cuda.layout import FORMATS, NATIVE_TYPES
from mtpcore.backends.cuda.weights import upload

RESULT = Path(__file__).parent / "results" / "cuda_costs.md"

DEPTH = 1024
"""Places in the KV cache where tokens are priced."""
WEIGHTS = ("Q4_K_M", "Q8_0")
SHAPES = {"tall": (14336, 4096), "small": (2048, 2048)}
"""A matrix that all multiprocessors share for long, and one that is read in no time."""
SEPARATE, IN_GRAPH = 2.5e-6, 1.25e-6
"""Seconds from the end of a kernel to the start of the next: an assumption."""
PIPES = ("tensor", "float", "multiply", "alu", "convert", "load", "uniform", "control")

TITLE = f"""# What the CUDA kernels cost on paper

Written by `python benchmarks/cuda_costs.py` from compiled code and published figures, without a
GPU. **Nothing here was measured.** A kernel takes as long as the longest of: its bytes at the rate
of a copy ({MEASURED_COPY:.0%} of the published bandwidth); its instructions at four a cycle; those
of each pipe at the pipe's rate; and the rounds of resident blocks that it needs, each as long as a
warp waits for its own loads (latency of memory times {LOADED}: memory is busy). Sources, and what
is assumed where nothing is published, are in `benchmarks/costs/gpus.py`.
"""
PRODUCTS = """
## Products

Instructions of a warp for 16 rows by 256 columns and 8 rows of x (32 in wide kernels), by pipe, on
sm_90, beside the bytes of weights that it reads for them. `other` is what a warp carries out before
and behind its loop; `blocks` are resident on a multiprocessor of an H200.

"""
SHARES = """
Share of a copy's bandwidth with which a matrix is read, by one and by eight rows, and what bounds
it: a matrix of {tall}, then one of {small}.

"""
TOKENS = f"""
## Tokens

Behind {DEPTH} places, with a KV cache in f16; a round drafts three tokens with one block of the
model and verifies them. Milliseconds are those of kernels, then with gaps of {SEPARATE * 1e6}
and of {IN_GRAPH * 1e6} microseconds between them: launched one by one, and in a graph. `floor` is
the bytes of products at a copy's rate, and `share` what that is of the time in a graph. Wanted:
80 % of a copy's bandwidth for one row, eight rows for 1.05 and a round for 2.0 of it.

"""
KERNELS_OF_ROW = """
One row of the 8 B model in Q4_K_M: launches of each kernel, and microseconds of all of them.

"""
OTHERS = """
## Not priced

These kernels are asked for by other models, or other settings.

"""


class Compiled:
    """Kernels compiled and disassembled, and what launches of them cost, each once."""

    def __init__(self, disassembler: str) -> None:
        self._disassembler = disassembler
        self._codes: dict[tuple[Kernel, str, bool], Code] = {}
        self._launches: dict[tuple[str, str], Launched] = {}
        self._prices: dict[tuple[str, str], Price] = {}

    def code(self, recorded: Recorded, architecture: str) -> Code:
        """Return the instructions of a launch's blocks."""
        kernel = recorded.kernel
        key = (kernel, architecture, is_followed(recorded))
        if key not in self._codes:
            cubin = compile_kernel(kernel, architecture)
            whole = disassemble(cubin, architecture, self._disassembler)
            self._codes[key] = of_most(recorded, whole)
        return self._codes[key]

    def launched(self, recorded: Recorded, architecture: str) -> Launched:
        """Return what a launch does."""
        key = (str(recorded), architecture)
        if key not in self._launches:
            code = self.code(recorded, architecture)
            self._launches[key] = launched(recorded, code, DEPTH)
        return self._launches[key]

    def price(self, gpu: Gpu, recorded: Recorded) -> Price:
        """Return what a launch costs on a GPU."""
        key = (str(recorded), gpu.name)
        if key not in self._prices:
            registers, shared = taken(recorded.kernel, gpu.architecture)
            code = self.code(recorded, gpu.architecture)
            launch = self.launched(recorded, gpu.architecture)
            found = price(gpu, code, launch, registers, shared)
            if norm := norm_behind(recorded):  # row after row, when all else has ended
                n_rows = int(recorded.arguments[13])
                behind = n_rows * self.price(gpu, norm).bounds["latency"]
                found = msgspec.structs.replace(found, start=found.start + behind)
            self._prices[key] = found
        return self._prices[key]


@cache
def taken(kernel: Kernel, architecture: str) -> tuple[int, int]:
    """Return registers of a thread and shared memory of a block, from the table of kernels."""
    lines = [line.strip("| ").split(" | ") for line in KERNEL_TABLE.read_text().splitlines()]
    named = next(line for line in lines if line[:1] == ["kernel"])
    wanted = [kernel.name, label(kernel)]
    found = next(line for line in lines if [cell.strip() for cell in line[:2]] == wanted)
    return int(found[named.index(architecture)]), int(found[named.index("shared")])


def of_product(kind: int, shape: tuple[int, int], n_rows: int) -> Recorded:
    """Return the launch that multiplies so many rows with a matrix of this type and shape."""
    device = Recorder()
    w = upload(device, packed_shapes(None, kind, shape))
    x, y = (device.empty((n_rows, width), np.float32) for width in reversed(shape))
    step = Step(
        (x,), (w,), (y,), {}, lambda _, size, dtype: device.empty(size, dtype), device.upload
    )
    for launch in LAUNCHERS["matmul"](step, n_rows):
        device.launch(launch.kernel, launch.grid, launch.block, launch.arguments)
    return device.launches[-1]


def table(names: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def figures() -> Iterator[str]:
    """Yield what is known of the GPUs."""
    names = ["GPU", "multiprocessors", "GHz", "TB/s", "copy, bytes a cycle and multiprocessor"]
    names += ["int8 multiply-adds", "float32 lanes", "bytes in flight wanted"]
    rows = [
        [
            *(gpu.name, str(gpu.multiprocessors), f"{gpu.clock / 1e9:.2f}"),
            *(f"{gpu.bandwidth / 1e12:.2f}", f"{gpu.copy_of_cycle:.1f}"),
            *(str(gpu.mma), str(gpu.float_lanes), f"{gpu.in_flight:,.0f}"),
        ]
        for gpu in GPUS
    ]
    yield "\n## GPUs\n\nOf a multiprocessor, and in a cycle, where nothing else is said.\n\n"
    yield table(names, rows)


def products(compiled: Compiled) -> Iterator[str]:
    """Yield what products are made of, and what bounds them."""
    yield PRODUCTS
    rows, shares = [], []
    for kind in NATIVE_TYPES:
        for n_rows in (1, 512) if kind in FORMATS else (1,):
            recorded = of_product(kind, SHAPES["tall"], n_rows)
            rows.append(_counted(compiled, recorded, kind))
        for n_rows in (1, 8):
            cells = [Type(kind).name, str(n_rows)]
            for shape in SHAPES.values():
                recorded = of_product(kind, shape, n_rows)
                cells += [_said(compiled.price(gpu, recorded)) for gpu in GPUS]
            shares.append(cells)
    yield table(["type", "kernel", "bytes", "all", *PIPES, "other", "blocks", "registers"], rows)
    yield SHARES.format(**{name: " x ".join(map(str, s)) for name, s in SHAPES.items()})
    yield table(["type", "rows", *(2 * [gpu.name for gpu in GPUS])], shares)


def _said(found: Price) -> str:
    return f"{found.share:.0%} {found.bound}"


def _counted(compiled: Compiled, recorded: Recorded, kind: int) -> list[str]:
    code = compiled.code(recorded, "sm_90")
    launch = compiled.launched(recorded, "sm_90")
    registers, shared = taken(recorded.kernel, "sm_90")
    counts, fixed = code.counts(launch.loops), code.counts(dict.fromkeys(launch.loops, 0.0))
    rows, cols = SHAPES["tall"]
    macros = dict(recorded.kernel.defines)
    if recorded.kernel.name == "matmul":
        tiles = int(macros["ROW_TILES"])
        times = cols / 8 / 256 * tiles * int(macros["EIGHTHS"])
        name = label(recorded.kernel).split(", ", 1)[1]
    else:
        times, name = 4 / 16 * cols / 8 / 256, "float"
    n_bytes = sum(
        np.prod(a.shape) * np.dtype(a.dtype).itemsize
        for i, a in enumerate(recorded.arguments[:4])
        if i in launch.streamed and hasattr(a, "shape")
    )
    each = {pipe: (counts[pipe] - fixed[pipe]) / times for pipe in PIPES}
    blocks = resident(GPUS[-1], registers, shared, recorded.block)
    return [
        *(Type(kind).name, name, f"{n_bytes / (rows / 16) / (cols / 256):,.0f}"),
        f"{sum(each.values()):.0f}",
        *(f"{each[pipe]:.0f}" for pipe in PIPES),
        *(f"{fixed.total():.0f}", str(blocks), str(registers)),
    ]


def tokens(compiled: Compiled) -> Iterator[str]:
    """Yield what whole passes cost, and what the launches of one are made of."""
    rows, parts = [], []
    for size, shape in MODELS.items():
        for kind in WEIGHTS:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.gguf"
                write_hole(path, shape, kind)
                recorded = passes(path, DEPTH)
            for gpu in GPUS:
                rows += _of_passes(compiled, gpu, f"{size} {kind}", recorded)
            if (size, kind) == ("8 B", "Q4_K_M"):
                parts = _of_kernels(compiled, recorded["one row"])
    names = ["model", "GPU", "pass", "launches", "floor", "kernels", "launched", "in a graph"]
    yield TOKENS
    yield table([*names, "share", "of one row"], rows)
    yield KERNELS_OF_ROW
    yield table(["kernel", "launches", *(gpu.name for gpu in GPUS)], parts)


def _of_passes(
    compiled: Compiled, gpu: Gpu, model: str, recorded: dict[str, list[Recorded]]
) -> Iterator[list[str]]:
    one = 0.0
    for name, launches in recorded.items():
        floor = sum(
            compiled.launched(r, gpu.architecture).n_bytes / gpu.copy
            for r in launches
            if r.kernel.name.startswith("matmul")
        )
        seconds = sum(compiled.price(gpu, r).seconds for r in launches)
        alone, graph = (seconds + gap * len(launches) for gap in (SEPARATE, IN_GRAPH))
        one = one or graph
        yield [
            *(model, gpu.name, name, str(len(launches))),
            *(f"{1e3 * value:.2f}" for value in (floor, seconds, alone, graph)),
            *(f"{floor / graph:.0%}", f"{graph / one:.2f}"),
        ]


def _of_kernels(compiled: Compiled, launches: list[Recorded]) -> list[list[str]]:
    found = defaultdict(list)
    for r in launches:
        found[f"{r.kernel.name} {label(r.kernel)}".strip()].append(r)
    rows = []
    for name, group in found.items():
        cells = []
        for gpu in GPUS:
            prices = [compiled.price(gpu, r) for r in group]
            bound = max(prices, key=lambda p: p.seconds).bound
            cells.append(f"{1e6 * sum(p.seconds for p in prices):.1f} {bound}")
        rows.append([name, str(len(group)), *cells])
    return rows


def others() -> Iterator[str]:
    """Yield which kernels are not priced, and why."""
    yield OTHERS
    names = sorted({kernel.name for kernel in KERNELS} - {*OF_KERNEL})
    yield table(["kernel", "asked for by"], [[name, ASKED_BY[name]] for name in names])


ASKED_BY = {
    "mix": "models with experts",
    "route": "models with experts",
    "route_few": "models with experts",
    "group": "stacks of matrices: experts, heads, positions, clusters",
    "scatter": "output matrices in clusters",
    "join_and_store": "latent attention",
    "causal_conv": "hybrids",
    "delta_rule": "hybrids",
    "block": "drafters that see blocks of rows",
    "tally": "cuts: top-p, top-k and min-p",
    "descend": "cuts: top-p, top-k and min-p",
    "embedding_rows": "rows that come beside text",
    "weigh": "a least probability of drafts",
    "complete": "a least probability of drafts",
    **dict.fromkeys(("rank", "merge_ranks", "grow"), "drafters that propose trees"),
    **dict.fromkeys(
        ("select_best", "follow_branches", "place_verified", "show_verified"),
        "trees that grow by what nodes are worth",
    ),
    "walk_trees": "hybrids, and trees that grow by what nodes are worth",
}


def main() -> None:
    """Write the tables, or say what is missing."""
    disassembler = find_disassembler()
    if disassembler is None:
        sys.exit(
            "nvdisasm is not installed: take the CUDA toolkit, or pip install nvidia-cuda-nvdisasm"
        )
    compiled = Compiled(disassembler)
    parts = [TITLE, *figures(), *products(compiled), *tokens(compiled), *others()]
    RESULT.write_text("".join(parts))


if __name__ == "__main__":
    main()
