"""Kernels from source to machine code, by NVIDIA's run-time compiler; needs no GPU.

Kernels are ``extern "C"`` with variants by ``-D``, free of includes, so that a compiled one is
kept on disk under a key of source, options, architecture and compiler version.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping
from importlib import resources
from typing import Any

import msgspec

from mtpcore.boundary.paths import cache_folder
from mtpcore.errors import BackendError

__all__ = ["ARCHITECTURES", "Kernel", "compile_kernel", "import_cuda", "kernel_report"]

ARCHITECTURES = ("sm_80", "sm_90")
"""What the tests compile for; a device's own architecture is used at run time."""

_CACHE_BYTES = 64 << 20


class Kernel(msgspec.Struct, frozen=True):
    """A kernel source ``kernels/<name>.cu`` with an entry of the same name, and its variant."""

    name: str
    defines: tuple[tuple[str, str], ...] = ()

    @property
    def source(self) -> str:
        """The CUDA C++ text."""
        file = resources.files("mtpcore.backends.cuda") / "kernels" / f"{self.name}.cu"
        return file.read_text("utf-8")

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.defines)])


def compile_kernel(kernel: Kernel, architecture: str) -> bytes:
    """Return the cubin for an architecture such as ``sm_90``, from the cache where it is there.

    Raises
    ------
    BackendError
        The compiler is not installed, or refuses the source.
    """
    utils = import_cuda("cuda.core.utils")
    with utils.FileStreamProgramCache(
        cache_folder() / "cuda", max_size_bytes=_CACHE_BYTES
    ) as cache:
        return _compile(kernel, architecture, {}, cache=cache)


def kernel_report(kernel: Kernel, architecture: str) -> str:
    """Return what compiler and assembler say: warnings, registers, spills, shared memory."""
    log = io.StringIO()
    _compile(kernel, architecture, {"ptxas_options": ["-v"]}, logs=log)
    return log.getvalue()


def _compile(
    kernel: Kernel, architecture: str, options: Mapping[str, Any], **outlets: Any
) -> bytes:
    core = import_cuda("cuda.core")
    # A contracted multiply-add would be the compiler's choice; the sources write fmaf().
    chosen = core.ProgramOptions(
        name=kernel.name,
        arch=architecture,
        std="c++17",
        fma=False,
        define_macro=list(kernel.defines) or None,
        **options,
    )
    try:
        compiled = core.Program(kernel.source, "c++", chosen).compile("cubin", **outlets)
    except Exception as error:
        raise BackendError(
            "the CUDA compiler refused a kernel",
            where=f"{kernel} for {architecture}",
            got=str(error).strip("\0 \n"),
            fix="install the tested versions: pip install 'mtpcore[cuda]'",
        ) from error
    return bytes(compiled.code)


def import_cuda(module: str) -> Any:
    """Import a module of cuda-core or cuda-bindings; a BackendError says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BackendError(
            "no CUDA device can be used",
            got=f"Python packages are missing ({error})",
            fix="pip install 'mtpcore[cuda]'",
        ) from error
