"""The launches that a model asks for: a device that writes them down and carries nothing out.

Model files are as large as real ones, but nothing is in them: their tensors are a hole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFWriter
from gguf import GGMLQuantizationType as Type
from numpy.typing import DTypeLike, NDArray
from shapes import SHAPES, Shape

from mtpcore import Batch, Context, link, load_model
from mtpcore.backends.cuda import CudaBackend, layout, weights
from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch.passes import DRAFT
from mtpcore.gguf.writer import add_value

__all__ = ["MODELS", "Recorded", "Recorder", "packed_shapes", "passes", "recorder", "write_hole"]

MODELS: dict[str, Shape] = {
    "1 B": SHAPES["mimo-1b"],
    "8 B": msgspec.structs.replace(
        SHAPES["mimo-1b"],
        n_layers=32,
        width=4096,
        n_kv_heads=8,
        head_width=128,
        ff_width=14336,
        n_vocab=128256,
    ),
}
"""Of the shapes of TinyLlama and Llama 3 8B, with a drafting block."""


class Recorded(msgspec.Struct, frozen=True):
    """A launch as a device is asked for it."""

    kernel: Kernel
    grid: tuple[int, ...]
    block: int
    arguments: tuple[Any, ...]


class Recorder:
    """Implements ``mtpcore.backends.cuda.device.Device`` without memory; all that is read is 0.

    But drafts: each is made, and goes on.
    """

    name = "paper"

    def __init__(self) -> None:
        self.launches: list[Recorded] = []

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """Make an array without memory."""
        return DeviceArray(shape, np.dtype(dtype), None)

    def upload(self, array: NDArray[Any], into: DeviceArray | None = None) -> DeviceArray:
        """Make an array of this shape."""
        return into or self.empty(array.shape, array.dtype)

    def download(self, array: DeviceArray, n_rows: int) -> NDArray[Any]:
        """Return zeros."""
        return np.zeros((n_rows, *array.shape[1:]), array.dtype)

    def copy(self, *_: Any) -> None:
        """Do nothing."""

    def read(self, array: DeviceArray, at: int, n_bytes: int) -> bytes:
        """Return zeros."""
        if array.dtype != DRAFT:
            return bytes(n_bytes)
        drafts = np.zeros(n_bytes // DRAFT.itemsize, DRAFT)
        drafts["goes_on"] = 1
        return drafts.tobytes()

    def address(self, array: DeviceArray) -> int:
        """Return no address."""
        return 0

    def record(self, work: Callable[[], None]) -> None:
        """Write down what is launched."""
        work()

    def replay(self, graph: None) -> None:
        """Do nothing: it was written down."""

    def write(self, array: DeviceArray, at: int, data: bytes | memoryview) -> None:
        """Do nothing."""

    def load(self, kernel: Kernel) -> Any:
        """Return the kernel itself."""
        return kernel

    def launch(
        self,
        loaded: Any,
        grid: tuple[int, ...],
        block: int,
        arguments: Sequence[Any],
        *,
        is_early: bool = False,
    ) -> None:
        """Write it down."""
        self.launches.append(Recorded(loaded, grid, block, tuple(arguments)))


@contextmanager
def recorder() -> Iterator[Recorder]:
    """Let weights have room, and no values."""
    with mock.patch.object(weights.Weights, "send", return_value=False):
        yield Recorder()


def packed_shapes(raw: Any, kind: int, shape: tuple[int, ...]) -> layout.PackedMatrix:
    """Return what ``layout.pack`` does, without memory: zeros that are all the same one."""
    n_matrices, n_rows, n_cols = (1, *shape)[-3:]
    n_columns, n_bytes = GGML_QUANT_SIZES[Type(kind)]
    if kind in layout.FLOATS:
        part = layout.pack(np.zeros((1, n_cols * n_bytes), np.uint8), kind, (1, n_cols))
        low = np.broadcast_to(part.low, (n_matrices * n_rows, part.low.shape[1]))
        return layout.PackedMatrix(kind, n_matrices, n_rows, n_cols, low)
    row = np.zeros((layout.TILE, n_cols // n_columns * n_bytes), np.uint8)
    part = layout.pack(row, kind, (layout.TILE, n_cols))
    n_tiles = n_matrices * -(-n_rows // layout.TILE)
    planes = (
        None if plane is None else np.broadcast_to(plane[:1], (n_tiles, *plane.shape[1:]))
        for plane in (part.low, part.high, part.factors, part.scales)
    )
    return layout.PackedMatrix(kind, n_matrices, n_rows, n_cols, *planes)


def write_hole(path: Path, shape: Shape, kind: str) -> None:
    """Write a model file with a header and no values."""
    writer, kind_of = GGUFWriter(path, shape.architecture), _types(shape, kind)
    for key, value in shape.metadata().items():
        add_value(writer, key, value)
    total = 0
    for name, size in shape.tensors():
        chosen = Type.F32 if len(size) == 1 else kind_of(name)
        n_columns, n_bytes = GGML_QUANT_SIZES[chosen]
        size_in_bytes = int(np.prod(size)) // n_columns * n_bytes
        writer.add_tensor_info(name, size, np.dtype(np.float32), size_in_bytes, chosen)
        total += -(-size_in_bytes // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, -(-path.stat().st_size // 32) * 32 + total)


def _types(shape: Shape, kind: str) -> Any:
    """Return what says a matrix's type; the mixture Q4_K_M as llama.cpp chooses it."""
    if kind != "Q4_K_M":
        return lambda name: Type[kind]
    eighth = shape.n_layers // 8

    def mixed(name: str) -> Type:
        if name == "output.weight":
            return Type.Q6_K
        if "attn_v" in name or "ffn_down" in name:
            n = int(name.split(".")[1])
            if n < eighth or n >= 7 * eighth or (n - eighth) % 3 == 2:
                return Type.Q6_K
        return Type.Q4_K

    return mixed


def passes(path: Path, depth: int) -> dict[str, list[Recorded]]:
    """Return the launches of a plain token, of eight rows, of a round, and of a prompt of 512.

    Each behind ``depth`` places. A round drafts three tokens and verifies them.
    """
    found = {}
    with load_model(path) as model, recorder() as device:
        llm = Context(model, n_ctx=depth + 2048, backend=CudaBackend(device))
        cross = link(llm)
        prompt = [1] * depth
        cross.verify({}, prefill={0: prompt})

        def take(name: str) -> None:
            found[name] = device.launches
            device.launches = []

        def round_of(drafts: list[int]) -> None:
            cross.verify({0: drafts})
            cross.accept(0, 0)

        cross.draft(0, 3)  # the drafter reads the prompt
        round_of([])
        cross.draft(0, 3)
        round_of([])
        take("before")
        round_of([])
        take("one row")
        round_of([2] * 7)
        take("eight rows")
        cross.draft(0, 3)
        round_of([2] * 3)
        take("before")
        drafts = cross.draft(0, 3)
        round_of(list(drafts))
        take("a round")
        llm = Context(model, n_ctx=2048, backend=CudaBackend(device))
        llm.process(Batch([1] * 512))
        take("512 rows")
    del found["before"]
    return found
