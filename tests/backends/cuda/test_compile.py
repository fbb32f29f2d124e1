"""Every kernel compiles without a GPU, spills nothing, and is kept on disk."""

import pytest
from harness.extras import require
from harness.kernel_sample import drawn, sample

from mtpcore.backends.cuda import compile as compiling
from mtpcore.backends.cuda.compile import ARCHITECTURES, Kernel, compile_kernel, measure
from mtpcore.backends.cuda.launch import KERNELS
from mtpcore.errors import BackendError

require("cuda.core", "cuda.bindings.nvrtc", extra="cuda")

MOST_REGISTERS, MOST_SHARED = 255, 40 << 10
"""Of any kernel: what a thread can have, and what leaves room for two blocks on each device."""
MOST_SHARED_RING = 72 << 10
"""Of attention, and of a product with few rows, where values or weights come through a ring: what
any device gives a block that asks, and what leaves room for three where there is most.
"""


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "mtpcore" / "cuda"


ONE_OF_EACH_SOURCE = {kernel.name: kernel for kernel in sample()}.values()
DRAWN = [kernel for kernel in ONE_OF_EACH_SOURCE if drawn(kernel) // len(ARCHITECTURES) % 4 == 0]


@pytest.mark.parametrize("kernel", DRAWN, ids=str)
def test_kernel_compiles_without_spills_or_warnings(kernel):
    """One source of four in one variant, for one architecture; the kernel's text draws them.

    All have been compiled for all when `benchmarks/cuda_kernels.py` wrote its table, which is held
    to have been written of these very texts, and to say of none that it spills or that the compiler
    warns.
    """
    taken = measure(kernel, ARCHITECTURES[drawn(kernel) % len(ARCHITECTURES)])
    assert taken.spilled == 0
    assert not taken.warnings
    assert 0 < taken.registers <= MOST_REGISTERS
    has_ring = kernel.name in ("attention", "matmul_few")
    assert taken.shared <= (MOST_SHARED_RING if has_ring else MOST_SHARED)


def test_every_source_is_a_kernel_of_the_table():
    folder = compiling.resources.files("mtpcore.backends.cuda") / "kernels"
    sources = {f.name for f in folder.iterdir() if f.name.endswith(".cu")}
    assert sources == {f"{kernel.name}.cu" for kernel in KERNELS}


def test_every_header_is_pasted_somewhere():
    folder = compiling.resources.files("mtpcore.backends.cuda") / "kernels"
    sources = {kernel.name: kernel.source for kernel in KERNELS}
    for header in (f for f in folder.iterdir() if f.name.endswith(".cuh")):
        assert any(header.read_text() in source for source in sources.values()), header.name
    assert not any("#include" in source for source in sources.values())


def test_compiled_kernel_is_kept_on_disk(cache, monkeypatch):
    first = compile_kernel(KERNELS[0], "sm_90")
    assert first.startswith(b"\x7fELF")
    assert [f for f in cache.rglob("*") if f.is_file() and f.read_bytes() == first]
    monkeypatch.setattr(
        "cuda.core.utils.FileStreamProgramCache.__setitem__",
        lambda *given: pytest.fail("compiled again"),
    )
    assert compile_kernel(KERNELS[0], "sm_90") == first


def test_variants_are_kept_apart():
    centred, plain = (Kernel("normalise", (("CENTRED", how), ("BLOCK", "0"))) for how in "10")
    assert compile_kernel(centred, "sm_90") != compile_kernel(plain, "sm_90")


def test_warnings_and_memory_of_a_thread_are_seen(monkeypatch):
    """Of a variable for nothing, and of an array whose places depend on what runs."""
    text = compiling._text

    def planted(line):
        source = text("block.cu").replace("float total = 0.0f;", line)
        monkeypatch.setattr(compiling, "_text", lambda name: source)
        return measure(Kernel("block", (("MIX", "0"),)), "sm_90")

    assert "unused" in planted("float total = 0.0f; int unused;").warnings
    places = planted("float kept[99]; kept[size] = at; float total = kept[width];")
    assert places.spilled >= 99 * 4


def test_refused_source_names_kernel_and_architecture():
    with pytest.raises(BackendError, match="copy lane=1 int=2 for sm_90") as caught:
        compile_kernel(Kernel("copy", (("lane", "1"), ("int", "2"))), "sm_90")
    assert "error" in caught.value.got
