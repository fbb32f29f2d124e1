"""The CUDA backend: memory on a GPU, and plans for programs whose operations have kernels."""

from __future__ import annotations

from collections.abc import Sequence

from mtpcore.backends.base import Store, WeightSource
from mtpcore.backends.cuda.device import Device, find_device
from mtpcore.backends.cuda.launch import LAUNCHERS
from mtpcore.backends.cuda.outputs import DeviceRowBuffer
from mtpcore.backends.cuda.plan import CudaPlan
from mtpcore.backends.cuda.states import CudaStateStore
from mtpcore.backends.cuda.store import CudaStore
from mtpcore.backends.cuda.weights import CudaWeights
from mtpcore.errors import BackendError
from mtpcore.graph.program import MemoryLayer, Program, StateLayer
from mtpcore.memory.base import StateStore

__all__ = ["CudaBackend"]


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
    packs_after_runs = False
    on_host = False

    def __init__(self, device: Device | None = None) -> None:
        self.device = find_device() if device is None else device

    @classmethod
    def on_device(cls, index: int) -> CudaBackend:
        """Return the backend of GPU ``index``, from 0 on; raises what ``find_device`` does."""
        return cls(find_device(index))

    def store(self, layers: Sequence[MemoryLayer], n_pages: int, dtype: str) -> CudaStore:
        """Make the pages for these memory layers; ``dtype`` is one of ``KV_DTYPES``."""
        return CudaStore(self.device, layers, n_pages, dtype)

    def state_store(
        self, layers: Sequence[StateLayer], n_slots: int, source: WeightSource
    ) -> CudaStateStore:
        """Make the slots for the states of these recurrent layers, and their logs."""
        return CudaStateStore(self.device, layers, n_slots, CudaWeights(self.device, source, 1))

    def row_buffer(self, n_rows: int, width: int) -> DeviceRowBuffer:
        """Make room for rows that wait for a plan, on the device."""
        return DeviceRowBuffer(self.device, n_rows, width)

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
        """Compile the kernels, and make room for the weights, shared by all plans of the source.

        ``threads`` threads of the processor reorder them when they are sent.

        Raises
        ------
        BackendError
            An operation has no kernel yet, which names the first one; or the memory is another
            backend's.
        """
        for node in program.nodes:
            if node.op not in LAUNCHERS:
                raise BackendError(
                    f"no CUDA kernel for operation {node.op!r} yet",
                    where=node.name,
                    wanted=", ".join(LAUNCHERS),
                    fix="use backend='cpu'",
                )
        cuda_stores = [store for store in stores if isinstance(store, CudaStore)]
        if len(cuda_stores) < len(stores):
            raise BackendError("memory of another backend", got=type(stores[0]).__name__)
        if not isinstance(states, CudaStateStore | None):
            raise BackendError("memory of another backend", got=type(states).__name__)
        return CudaPlan(
            self.device,
            program,
            source,
            n_batch=n_batch,
            n_ctx=n_ctx,
            threads=threads,
            stores=cuda_stores,
            states=states,
        )
