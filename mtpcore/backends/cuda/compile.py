"""Kernels from source to machine code, by NVIDIA's run-time compiler; needs no GPU.

Kernels are ``extern "C"`` with variants by ``-D``. What several share is in ``kernels/*.cuh``, and
pasted where it is included, so that a compiled kernel is kept on disk under a key of all of its
source, options, architecture and compiler version.
"""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from mtpcore.backends.cuda.signature import Signature, read_signature
from mtpcore.boundary.paths import cache_folder
from mtpcore.errors import BackendError

__all__ = ["ARCHITECTURES", "Kernel", "Resources", "compile_kernel", "import_cuda", "measure"]

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
"""Kernels are held to compile well for these; a device's own architecture is used at run time."""

_CACHE_BYTES = 64 << 20
_RESOURCES = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
    r".*Used (\d+) registers(?:.* (\d+) bytes smem)?"
)
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


class Kernel(msgspec.Struct, frozen=True):
    """A kernel source ``kernels/<name>.cu`` with an entry of the same name, and its variant."""

    name: str
    defines: tuple[tuple[str, str], ...] = ()

    @property
    def source(self) -> str:
        """The CUDA C++ text, with the text of the headers in the place of their names."""
        return _INCLUDE.sub(lambda line: _text(line[1]), _text(f"{self.name}.cu"))

    @property
    def shared(self) -> int:
        """Bytes of shared memory that a launch gives a block, besides what the source declares."""
        return int(dict(self.defines).get("SHARED", 0))

    @property
    def signature(self) -> Signature:
        """What the kernel takes, as its source declares it; all variants take the same."""
        return read_signature(_text(f"{self.name}.cu"))

    def arguments(self, **given: Any) -> tuple[Any, ...]:
        """Return the arguments of a launch in order, each given by the name of its parameter.

        Raises
        ------
        TypeError
            As ``Signature.arguments``.
        """
        return self.signature.arguments(**given)

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.defines)])


@cache
def _text(name: str) -> str:
    file = resources.files("mtpcore.backends.cuda") / "kernels" / name
    return file.read_text("utf-8")


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


class Resources(msgspec.Struct, frozen=True):
    """What a compiled kernel takes: registers a thread, bytes of shared memory a block.

    ``spilled`` are the bytes that a thread keeps in memory for want of registers, or because an
    array has no fixed places; ``warnings`` is what the compiler complained of.
    """

    registers: int
    shared: int
    spilled: int
    warnings: str


def measure(kernel: Kernel, architecture: str) -> Resources:
    """Return what compiler and assembler say of a kernel.

    Raises
    ------
    BackendError
        The compiler is not installed, refuses the source, or says something else than it did.
    """
    log = io.StringIO()
    _compile(kernel, architecture, {"ptxas_options": ["-v"]}, logs=log)
    said = log.getvalue()
    found = _RESOURCES.search(said)
    if found is None:
        raise BackendError(
            "the CUDA assembler says nothing of a kernel", where=str(kernel), got=said
        )
    stack, stores, loads, registers, shared = (int(number or 0) for number in found.groups())
    warnings = said[: found.start()] if "warning" in said else ""
    return Resources(registers, shared + kernel.shared, max(stack, stores, loads), warnings)


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
        # Or compilers before 13.1 take generic lambdas within kernels for functions of the host.
        device_as_default_execution_space=True,
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
            fix="pip install 'mtpcore[cuda]', or use backend='cpu'",
        ) from error
