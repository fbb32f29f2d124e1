"""The one module that talks to a GPU: find it, keep arrays on it, launch kernels.

``Device`` is what plans need of one; ``CudaDevice`` is that in terms of cuda-core.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from mtpcore.backends.cuda.compile import Kernel, compile_kernel, import_cuda
from mtpcore.errors import BackendError

__all__ = ["CudaDevice", "Device", "DeviceArray", "find_device"]

_OLDEST = (8, 0)
_OLDEST_DRIVER = 13000
"""CUDA 13, as drivers count: older ones do not load what its compiler makes."""
_EARLY = (9, 0)
"""From here on a launch may begin before the one before has ended."""
_CUDA = 2  # among DLPack's kinds of devices
_LEGACY = 1  # the stream that None stands for there


class DeviceArray(msgspec.Struct, frozen=True):
    """An array on a device: shape, type, and the device's own handle of the memory.

    One with a ``pitch`` is columns of wider rows, counted over all axes but the last: they are
    that far apart, and the first begins at entry ``begin`` of the memory.
    """

    shape: tuple[int, ...]
    dtype: Any
    memory: Any
    begin: int = 0
    pitch: int = 0

    @property
    def apart(self) -> int:
        """Entries from one row to the next."""
        return self.pitch or self.shape[-1]


class Device(Protocol):
    """What plans need of a device; launches happen in order."""

    name: str
    dlpack_device: tuple[int, int]
    """What DLPack calls the device: its kind and its number."""
    stream: int | None
    """The number by which other libraries know where launches go; None where they need none."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """Make an array without contents."""

    def upload(self, array: NDArray[Any], into: DeviceArray | None = None) -> DeviceArray:
        """Copy an array to the device, to the start of ``into`` where that is given."""

    def download(self, array: DeviceArray, n_rows: int) -> NDArray[Any]:
        """Wait for all launches and copy the first rows back."""

    def copy(
        self, source: DeviceArray, source_at: int, target: DeviceArray, target_at: int, n_bytes: int
    ) -> None:
        """Copy bytes between arrays, or within one, from these bytes on; they do not overlap."""

    def read(self, array: DeviceArray, at: int, n_bytes: int) -> bytes:
        """Wait for all launches and return ``n_bytes`` from byte ``at`` on."""

    def write(self, array: DeviceArray, at: int, data: bytes | memoryview) -> None:
        """Store bytes from byte ``at`` on."""

    def address(self, array: DeviceArray) -> int:
        """Return where an array begins, as kernels on the device see it."""

    def take(self, address: int, n_bytes: int, into: DeviceArray) -> None:
        """Copy bytes that another library keeps on the device to the start of an array.

        Returns when that is done.
        """

    def precede(self, stream: int | None) -> None:
        """Let a stream of another library, in DLPack's numbers, wait for all launches so far."""

    def follow(self) -> None:
        """Let later launches wait for all that the legacy default stream was given so far."""

    def pin(self, n_bytes: int) -> NDArray[np.uint8]:
        """Make memory of the host that the device can read while the host goes on."""

    def send(self, source: NDArray[np.uint8], target: DeviceArray, at: int) -> None:
        """Begin to copy pinned memory to byte ``at`` of an array, after what was sent before.

        It must not change until the copy is done; launches do not wait for that.
        """

    def mark(self) -> Any:
        """Return a mark after all that was sent."""

    def wait(self, mark: Any) -> None:
        """Wait until all that was sent before a mark has arrived: later launches find it."""

    def follow_sent(self) -> None:
        """Let later launches wait for all that was sent so far, and what is sent later for them."""

    def load(self, kernel: Kernel) -> Any:
        """Compile a kernel for this device."""

    def launch(
        self,
        loaded: Any,
        grid: tuple[int, ...],
        block: int,
        arguments: Sequence[Any],
        *,
        is_early: bool = False,
    ) -> None:
        """Start a kernel; arguments are device arrays, None (null) and NumPy scalars.

        An early one may begin before the launch before it has ended, and waits for that itself.
        """

    def record(self, work: Callable[[], None]) -> Any:
        """Return the launches and copies of ``work`` as a graph; none of them is done yet."""

    def condition(self) -> Any:
        """Return a condition of the graph under construction, as an argument of launches.

        It does not hold until a kernel sets it, each time that the graph is started anew.
        """

    def when(self, condition: Any, work: Callable[[], None]) -> None:
        """Record launches that are done only where a condition holds by then."""

    def replay(self, graph: Any) -> None:
        """Start all that was recorded, in one call."""


def find_device(index: int = 0) -> CudaDevice:
    """Return a GPU.

    Raises
    ------
    BackendError
        What is missing: the packages, the driver, a GPU, or one that is new enough.
    """
    core = import_cuda("cuda.core")
    try:
        devices = core.Device.get_all_devices()
    except Exception as error:  # the loader's and the driver's errors share no base class
        raise BackendError(
            "no CUDA device can be used",
            got=f"NVIDIA's driver does not answer ({error})",
            fix="install NVIDIA's driver (nvidia-smi must list a GPU), or use backend='cpu'",
        ) from error
    if index >= len(devices):
        raise BackendError(
            "no CUDA device can be used",
            wanted=f"GPU {index}",
            got=f"{len(devices)} GPUs",
            fix="see nvidia-smi and CUDA_VISIBLE_DEVICES, or use backend='cpu'",
        )
    device = devices[index]
    _, version = import_cuda("cuda.bindings.driver").cuDriverGetVersion()
    if version < _OLDEST_DRIVER:
        raise BackendError(
            "no CUDA device can be used",
            where=device.name,
            wanted="a driver of CUDA 13 (580 or newer)",
            got=f"one of CUDA {version // 1000}.{version % 1000 // 10}",
            fix="install a newer driver of NVIDIA's, or use backend='cpu'",
        )
    capability = tuple(device.compute_capability)
    if capability < _OLDEST:
        raise BackendError(
            "no CUDA device can be used",
            where=device.name,
            wanted="compute capability 8.0 or newer",
            got=".".join(map(str, capability)),
            fix="use backend='cpu'",
        )
    return CudaDevice(device)


class _Loaded(NamedTuple):
    """A kernel on a device, and the bytes of shared memory that a launch gives a block."""

    kernel: Any
    shared: int


class CudaDevice:
    """A GPU with one stream; implements ``Device``."""

    def __init__(self, device: Any) -> None:
        self._core, self._driver = import_cuda("cuda.core"), import_cuda("cuda.bindings.driver")
        device.set_current()
        self._device = device
        self._stream, self._sending = device.create_stream(), device.create_stream()
        self._recording = threading.local()  # a thread's graph under construction
        self._loaded: dict[Kernel, _Loaded] = {}
        self.name = f"{device.name}, device {device.device_id}"
        self.dlpack_device = (_CUDA, int(device.device_id))
        self.stream: int | None = int(self._stream.handle)
        self.architecture = "sm_{}{}".format(*device.compute_capability)
        self._can_be_early = tuple(device.compute_capability) >= _EARLY

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """Make an array without contents.

        Raises
        ------
        BackendError
            The device has no room for it; says how much is wanted, and how much is free.
        """
        n_bytes = max(int(np.prod(shape)) * np.dtype(dtype).itemsize, 1)
        try:
            self._device.set_current()
            memory = self._device.allocate(n_bytes, stream=self._stream)
        except Exception as error:
            raise BackendError(
                "no memory on the CUDA device",
                where=self.name,
                wanted=f"{n_bytes:,} bytes more",
                got=f"{self._free_bytes()} ({error})",
                fix="make n_ctx, n_seq_max or n_batch smaller, or use backend='cpu'",
            ) from error
        return DeviceArray(shape, np.dtype(dtype), memory)

    def upload(self, array: NDArray[Any], into: DeviceArray | None = None) -> DeviceArray:
        """Copy an array to the device, to the start of ``into`` where that is given."""
        array = np.ascontiguousarray(array)
        target = into or self.empty(array.shape, array.dtype)
        self._send(array, target, 0)
        return target

    def download(self, array: DeviceArray, n_rows: int) -> NDArray[Any]:
        """Wait for all launches and copy the first rows back."""
        out = np.empty((n_rows, *array.shape[1:]), array.dtype)
        self._fetch(array, 0, out)
        return out

    def copy(
        self, source: DeviceArray, source_at: int, target: DeviceArray, target_at: int, n_bytes: int
    ) -> None:
        """Copy bytes between arrays, or within one, from these bytes on; they do not overlap."""
        if n_bytes:
            begin, end = (
                int(source.memory.handle) + source_at,
                int(target.memory.handle) + target_at,
            )
            stream = self._target.stream if self._is_recording else self._stream
            with self._working("a copy failed"):
                self._check(self._driver.cuMemcpyDtoDAsync(end, begin, n_bytes, stream.handle))

    def read(self, array: DeviceArray, at: int, n_bytes: int) -> bytes:
        """Wait for all launches and return ``n_bytes`` from byte ``at`` on."""
        out = np.empty(n_bytes, np.uint8)
        self._fetch(array, at, out)
        return out.tobytes()

    def write(self, array: DeviceArray, at: int, data: bytes | memoryview) -> None:
        """Store bytes from byte ``at`` on."""
        self._send(np.frombuffer(data, np.uint8), array, at)

    def address(self, array: DeviceArray) -> int:
        """Return where an array begins, as kernels on the device see it."""
        return int(array.memory.handle)

    def take(self, address: int, n_bytes: int, into: DeviceArray) -> None:
        """Copy bytes that another library keeps on the device to the start of an array."""
        with self._working("another library's rows could not be copied"):
            if n_bytes:
                self._check(
                    self._driver.cuMemcpyDtoDAsync(
                        int(into.memory.handle), address, n_bytes, self._stream.handle
                    )
                )
            self._stream.sync()

    def precede(self, stream: int | None) -> None:
        """Let a stream of another library, in DLPack's numbers, wait for all launches so far."""
        with self._working("a stream of another library could not be told to wait"):
            so_far = self._stream.record()
            number = _LEGACY if stream is None else stream
            self._check(self._driver.cuStreamWaitEvent(number, so_far.handle, 0))

    def follow(self) -> None:
        """Let later launches wait for all that the legacy default stream was given so far."""
        with self._working("the default stream could not be waited for"):
            self._stream.wait(self._core.LEGACY_DEFAULT_STREAM)

    def pin(self, n_bytes: int) -> NDArray[np.uint8]:
        """Make memory of the host that the device can read while the host goes on.

        Raises
        ------
        BackendError
            The host has no memory that can be pinned.
        """
        with self._working(f"the host has no {n_bytes:,} bytes of memory that can be pinned"):
            pinned = self._core.LegacyPinnedMemoryResource().allocate(n_bytes)
        memory: Any = (ctypes.c_uint8 * n_bytes).from_address(int(pinned.handle))
        memory.owner = pinned  # which lives as long as an array of this
        return np.frombuffer(memory, np.uint8)

    def send(self, source: NDArray[np.uint8], target: DeviceArray, at: int) -> None:
        """Begin to copy pinned memory to byte ``at`` of an array, after what was sent before."""
        begin, stream = int(target.memory.handle) + at, self._sending
        with self._working("a copy to the device failed"):
            stream.wait(self._stream)  # memory is given to arrays in that stream's order
            self._check(
                self._driver.cuMemcpyHtoDAsync(
                    begin, source.ctypes.data, source.nbytes, stream.handle
                )
            )

    def mark(self) -> Any:
        """Return a mark after all that was sent."""
        with self._working("copies to the device failed"):
            return self._sending.record()

    def wait(self, mark: Any) -> None:
        """Wait until all that was sent before a mark has arrived: later launches find it."""
        with self._working("copies to the device failed"):
            mark.sync()

    def follow_sent(self) -> None:
        """Let later launches wait for all that was sent so far, and what is sent later for them."""
        with self._working("copies to the device could not be waited for"):
            self._stream.wait(self._sending)

    def load(self, kernel: Kernel) -> Any:
        """Compile a kernel for this device."""
        if kernel not in self._loaded:
            cubin = compile_kernel(kernel, self.architecture)
            with self._working(f"kernel {kernel} could not be loaded"):
                module = self._core.ObjectCode.from_cubin(cubin, name=kernel.name)
                loaded = _Loaded(module.get_kernel(kernel.name), kernel.shared)
                if loaded.shared:
                    self._allow(loaded)
            self._loaded[kernel] = loaded
        return self._loaded[kernel]

    def _allow(self, loaded: _Loaded) -> None:
        """Let launches of a kernel have as much shared memory as it needs."""
        most = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        number = self._device.device_id
        self._check(
            self._driver.cuKernelSetAttribute(most, loaded.shared, loaded.kernel.handle, number)
        )

    def launch(
        self,
        loaded: Any,
        grid: tuple[int, ...],
        block: int,
        arguments: Sequence[Any],
        *,
        is_early: bool = False,
    ) -> None:
        """Start a kernel; arguments are device arrays, None (null) and NumPy scalars.

        An early one may begin before the launch before it has ended, where the architecture can.
        """
        given = [
            argument.memory
            if isinstance(argument, DeviceArray)
            else np.uint64(0)
            if argument is None
            else argument
            for argument in arguments
        ]
        with self._working("a kernel could not be launched"):
            # CUDA's manual does not say whether that is allowed in a part that may be left out.
            is_part = getattr(self._recording, "is_part", False)
            config = self._core.LaunchConfig(
                grid=grid,
                block=block,
                shmem_size=loaded.shared,
                programmatic_stream_serialization=is_early and self._can_be_early and not is_part,
            )
            self._core.launch(self._target, config, loaded.kernel, *given)

    def record(self, work: Callable[[], None]) -> Any:
        """Return the launches and copies of ``work`` as a graph; none of them is done yet."""
        with self._working("launches could not be recorded"):
            builder = self._device.create_graph_builder()
            try:
                self._record_onto(builder, work)
            finally:
                vars(self._recording).pop("target", None)
            return builder.complete()

    def _record_onto(self, builder: Any, work: Callable[[], None]) -> None:
        """Let a graph, or a part of one, be what this thread launches."""
        builder.begin_building()
        self._recording.target = builder
        try:
            work()
        finally:
            builder.end_building()

    def condition(self) -> Any:
        """Return a condition of the graph under construction, as an argument of launches.

        With a default value cuda-core sets ``CU_GRAPH_COND_ASSIGN_DEFAULT``: that value is "applied
        at the beginning of each graph execution" (CUDA driver API,
        ``cuGraphConditionalHandleCreate``). Without one it stays what the last execution left.
        """
        return self._target.create_condition(default_value=0)

    def when(self, condition: Any, work: Callable[[], None]) -> None:
        """Record launches that are done only where a condition holds by then."""
        whole, self._recording.is_part = self._target, True
        try:
            self._record_onto(whole.if_then(condition), work)
        finally:
            self._recording.target, self._recording.is_part = whole, False

    def replay(self, graph: Any) -> None:
        """Start all that was recorded, in one call."""
        with self._working("a graph could not be launched"):
            graph.launch(self._stream)

    @property
    def _is_recording(self) -> bool:
        return hasattr(self._recording, "target")

    @property
    def _target(self) -> Any:
        """Where this thread's launches go: the stream, or its graph under construction."""
        return getattr(self._recording, "target", self._stream)

    def _send(self, array: NDArray[Any], target: DeviceArray, at: int) -> None:
        if array.nbytes:
            begin, stream = int(target.memory.handle) + at, self._stream
            with self._working("a copy to the device failed"):
                self._check(
                    self._driver.cuMemcpyHtoDAsync(
                        begin, array.ctypes.data, array.nbytes, stream.handle
                    )
                )
                stream.sync()  # the caller may change the array afterwards

    def _fetch(self, array: DeviceArray, at: int, out: NDArray[Any]) -> None:
        begin, stream = int(array.memory.handle) + at, self._stream
        with self._working("a copy from the device failed"):
            if out.nbytes:
                self._check(
                    self._driver.cuMemcpyDtoHAsync(
                        out.ctypes.data, begin, out.nbytes, stream.handle
                    )
                )
            stream.sync()

    @contextmanager
    def _working(self, what: str) -> Iterator[None]:
        """Make the device that of this thread; name it in errors, which come with any later call.

        A kernel that fails does so after its launch, and what waits for it is told.
        """
        try:
            self._device.set_current()
            yield
        except BackendError:
            raise
        except Exception as error:  # cuda-core's and the driver's errors share no base class
            raise BackendError(
                what,
                where=self.name,
                got=error,
                fix="see nvidia-smi and dmesg; a lost device comes back in a new process",
            ) from error

    def _check(self, answer: tuple[Any, ...]) -> None:
        """Raise RuntimeError where a call of the driver did not succeed."""
        status = answer[0]
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(status)

    def _free_bytes(self) -> str:
        """Say how much memory is free; the device may not even say that."""
        try:
            _, free, total = self._driver.cuMemGetInfo()
            return f"{free:,} of {total:,} bytes free"
        except Exception:
            return "the device does not answer"
