"""A kernel that begins early reads nothing ahead of its wait that launches before have written.

NVRTC's PTX shows it: what the compiler may read at any time has ``ld.global.nc``.
"""

import re
from functools import cache

import pytest
from harness.kernel_sample import sample

from mtpcore.backends.cuda import compile as compiling
from mtpcore.backends.cuda.launch import KERNELS
from mtpcore.backends.cuda.signature import read_signature

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra cuda")

EARLY = [kernel for kernel in KERNELS if "wait_for_launches();" in kernel.source]
WEIGHTS = re.compile(
    r"(low|high|parts|scales|bias)(_[23])?|weights?|sinks|frequencies|axes|factors"
    r"|correction|(weight|bias)_of_norm"
)
"""Parameters that no launch writes."""
LINE = re.compile(r"\s*(?:@!?%p\d+ )?([\w.:]+)\s+(.*);")


@cache
def ptx_of(source, defines):
    error, program = nvrtc.nvrtcCreateProgram(source.encode(), b"", 0, [], [])
    options = ["-arch=compute_90", "-std=c++17", "-fmad=false"]
    options += [f"-D{name}={value}" for name, value in defines]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    assert error == 0
    _, size = nvrtc.nvrtcGetPTXSize(program)
    text = bytes(size)
    nvrtc.nvrtcGetPTX(program, text)
    nvrtc.nvrtcDestroyProgram(program)
    return text.decode()


def read_at_any_time(kernel):
    """Return the pointers among a kernel's parameters that such loads begin from."""
    parameters = [of.name for of in read_signature(kernel.source).parameters]
    lines = [LINE.fullmatch(line) for line in ptx_of(kernel.source, kernel.defines).splitlines()]
    instructions = [(line[1], re.findall(r"%rd\d+|param_\d+", line[2])) for line in lines if line]
    begins_from = {f"param_{i}": {name} for i, name in enumerate(parameters)}
    grows = True
    while grows:  # loops carry pointers on
        grows = False
        for name, (to, *given) in ((name, used) for name, used in instructions if used):
            if name.startswith(("ld.global", "ld.shared", "st.", "cp.", "prefetch")):
                continue
            sources = set().union(*(begins_from.get(one, set()) for one in given))
            grows |= not sources <= begins_from.setdefault(to, set())
            begins_from[to] |= sources
    found = set()
    for name, used in instructions:
        if name.startswith("ld.global.nc"):
            assert begins_from[used[-1]], "a load from nowhere"
            found |= begins_from[used[-1]]
    return found


OF_PRODUCTS = [
    "const Codes *x",
    "const float *x_scales",
    "const unsigned *x_sums",
    "const int *members",
    "const int *matrices",
    "const float *residual",
]


def is_written(name):
    return WEIGHTS.fullmatch(name) is None


@pytest.mark.parametrize("kernel", sample(EARLY), ids=str)
def test_what_launches_have_written_is_read_after_the_wait(kernel):
    assert not set(filter(is_written, read_at_any_time(kernel)))


def test_what_a_layer_launches_begins_early():
    products = {"matmul", "matmul_few", "matmul_float", "route_few"}
    assert {kernel.name for kernel in EARLY} >= products | {"normalise", "quantise"}


@pytest.mark.parametrize(
    ("name", "pointers"),
    [
        ("matmul", OF_PRODUCTS),
        ("matmul_few", [*OF_PRODUCTS, "const float *shares", "const float *first_residual"]),
        ("matmul_float", ["const int *members", "const int *matrices", "const float *x"]),
        ("route_few", ["const float *x"]),
        ("normalise", ["const float *x"]),
        ("quantise", ["const float *x"]),
        ("rope_and_store", ["const float *q", "const int *positions"]),
        ("join_and_store", ["const float *latent"]),
    ],
)
def test_a_promise_that_values_never_change_is_seen(monkeypatch, name, pointers):
    """Each of them, where all are promised at once: a kernel is compiled in seconds."""
    text = compiling._text

    def planted(file):
        """The kernel is what its file ends with."""
        source = text(file)
        for pointer in pointers:
            ends = [found.end() for found in re.finditer(rf"{re.escape(pointer)}\b", source)]
            assert file != f"{name}.cu" or ends
            if ends:
                promised = pointer.replace("*", "*__restrict__ ")
                source = source[: ends[-1] - len(pointer)] + promised + source[ends[-1] :]
        return source

    kernel = next(
        kernel
        for kernel in EARLY
        if kernel.name == name
        and (name not in ("matmul", "matmul_few") or ("MINIMA", "1") in kernel.defines)
    )
    assert not set(filter(is_written, read_at_any_time(kernel)))
    monkeypatch.setattr(compiling, "_text", planted)
    assert {pointer.split("*")[1] for pointer in pointers} <= read_at_any_time(kernel)
