"""Every kernel compiles without a GPU, spills nothing, and is kept on disk."""

import pytest

from mtpcore.backends.cuda import compile as compiling
from mtpcore.backends.cuda.compile import ARCHITECTURES, Kernel, compile_kernel, kernel_report
from mtpcore.backends.cuda.ops import KERNELS
from mtpcore.errors import BackendError

pytest.importorskip("cuda.core", reason="cuda-core is not installed")
pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "mtpcore" / "cuda"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_kernel_compiles_without_spills_or_warnings(kernel, architecture):
    report = kernel_report(kernel, architecture)
    assert f"Compiling entry function '{kernel.name}' for '{architecture}'" in report
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in report
    assert "warning" not in report


def test_every_source_is_a_kernel_of_the_table():
    folder = compiling.resources.files("mtpcore.backends.cuda") / "kernels"
    assert {f.name for f in folder.iterdir()} == {f"{kernel.name}.cu" for kernel in KERNELS}


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
    eight, four = (Kernel("matmul", (("BITS", bits),)) for bits in "84")
    assert compile_kernel(eight, "sm_90") != compile_kernel(four, "sm_90")


def test_refused_source_names_kernel_and_architecture():
    with pytest.raises(BackendError, match="rms_norm lane=1 for sm_90") as caught:
        compile_kernel(Kernel("rms_norm", (("lane", "1"),)), "sm_90")
    assert "error" in caught.value.got
