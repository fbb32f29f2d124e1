"""The CUDA backend: programs lowered to kernel launches, for the operations that have kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mtpcore.backends.base import F32, CheckedBatch, Store, WeightSource
from mtpcore.backends.cuda.device import Device, DeviceArray, find_device
from mtpcore.backends.cuda.launch import LAUNCHERS
from mtpcore.backends.cuda.launch.step import Step
from mtpcore.backends.cuda.weights import load_weight
from mtpcore.backends.host_rows import HostRows
from mtpcore.errors import BackendError
from mtpcore.graph.program import MemoryLayer, Program, StateLayer
from mtpcore.memory.base import Memory, StateStore

__all__ = ["CudaBackend", "CudaPlan"]


class CudaBackend:
    """Runs programs on a GPU; implements ``mtpcore.backends.base.Backend``.

    Parameters
    ----------
    device : Device, optional
        Where to run; the first GPU where it is left out.

    Raises
    ------
    BackendError
        No CUDA device can be used; says what is missing.
    """

    name = "cuda"
    guarantee = "exact-backend"

    def __init__(self, device: Device | None = None) -> None:
        self.device = find_device() if device is None else device

    def store(self, layers: Sequence[MemoryLayer], n_pages: int, dtype: str) -> Store:
        """Raise BackendError: attention, which reads the pages, has no kernel yet."""
        raise BackendError(
            "the cuda backend keeps no memory yet",
            got=f"{len(layers)} attention layers",
            fix="use backend='cpu'",
        )

    def state_store(self, layers: Sequence[StateLayer], n_slots: int) -> StateStore:
        """Raise BackendError: recurrent operations have no kernels yet."""
        raise BackendError(
            "the cuda backend keeps no memory yet",
            got=f"{len(layers)} recurrent layers",
            fix="use backend='cpu'",
        )

    def row_buffer(self, n_rows: int, width: int) -> HostRows:
        """Make room for rows that wait for a plan, in the memory of the host."""
        return HostRows(n_rows, width)

    def plan(
        self,
        program: Program,
        source: WeightSource,
        *,
        n_batch: int,
        n_ctx: int,
        threads: int,
        stores: Sequence[Store],
        states: StateStore | None = None,
    ) -> CudaPlan:
        """Compile the kernels and upload the weights, shared by all plans of the source.

        Raises
        ------
        BackendError
            An operation has no kernel yet; names the first one.
        """
        for node in program.nodes:
            if node.op not in LAUNCHERS:
                raise BackendError(
                    f"no CUDA kernel for operation {node.op!r} yet",
                    where=node.name,
                    wanted=", ".join(LAUNCHERS),
                    fix="use backend='cpu'",
                )
        return CudaPlan(self, program, source, n_batch)


class CudaPlan:
    """A program as launches over arrays made once; implements ``mtpcore.backends.base.Plan``."""

    progress = 0.0  # not measured

    def __init__(
        self, backend: CudaBackend, program: Program, source: WeightSource, n_batch: int
    ) -> None:
        self.program, self._device = program, backend.device
        self._scratch: dict[tuple[Any, ...], DeviceArray] = {}
        self._constants: dict[tuple[str, bytes], DeviceArray] = {}
        self._arrays = {
            value.id: self._device.empty(
                (n_batch, *(int(width) for width in value.shape[1:])),
                np.int32 if value.dtype == "i32" else np.float32,
            )
            for value in program.values
        }
        self._steps = [
            (
                LAUNCHERS[node.op],
                Step(
                    tuple(self._arrays[i] for i in node.inputs),
                    tuple(
                        None if weight is None else load_weight(self._device, node, i, source)
                        for i, weight in enumerate(node.weights)
                    ),
                    tuple(self._arrays[i] for i in node.outputs),
                    node.attrs,
                    self._temporary,
                    self._constant,
                ),
            )
            for node in program.nodes
        ]
        for launcher, step in self._steps:
            for n_rows in (1, n_batch):
                for launch in launcher(step, n_rows):
                    self._device.load(launch.kernel)

    @property
    def bytes_to_pack(self) -> int:
        """0: weights are read when the plan is made."""
        return 0

    def prepare(self) -> None:
        """Do nothing: there is nothing to pack."""

    def run(self, batch: CheckedBatch, memory: Memory | None) -> dict[str, F32]:
        """Run all rows and return new arrays by output name."""
        n_rows = len(batch.tokens)
        given: dict[str, Any] = {
            "tokens": batch.tokens,
            "positions": batch.positions,
            **batch.slots,
        }
        if batch.embeddings is not None:
            given["embeddings"] = batch.embeddings
        for name, i in self.program.inputs.items():
            if name in given:
                self._device.upload(given[name], self._arrays[i])
        if n_rows:
            for launcher, step in self._steps:
                for launch in launcher(step, n_rows):
                    self._device.launch(
                        self._device.load(launch.kernel),
                        launch.grid,
                        launch.block,
                        launch.arguments,
                    )
        return {
            name: self._device.download(self._arrays[i], n_rows)
            for name, i in self.program.outputs.items()
        }

    def _temporary(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        key = (name, shape, np.dtype(dtype))
        if key not in self._scratch:
            self._scratch[key] = self._device.empty(shape, dtype)
        return self._scratch[key]

    def _constant(self, array: NDArray[Any]) -> DeviceArray:
        key = (array.dtype.str, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self._device.upload(array)
        return self._constants[key]
