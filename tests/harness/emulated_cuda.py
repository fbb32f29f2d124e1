"""NVIDIA's Python packages as ``CudaDevice`` uses them, with launches that run on the CPU.

``EmulatedCuda`` stands for ``cuda.core`` and ``cuda.bindings.driver`` both. Calls can be let fail,
as a driver's do that has lost its device.
"""

import ctypes
import threading
from types import SimpleNamespace

import numpy as np

from mtpcore.backends.cuda.device import DeviceArray

SUCCESS, LOST = "CUDA_SUCCESS", "CUDA_ERROR_DEVICE_UNAVAILABLE"
MOST_SHARED = object()


class Buffer:
    """Memory full of noise, as cuda-core hands it out."""

    def __init__(self, emulated, n_bytes):
        self.memory = emulated.empty((n_bytes,), np.uint8).memory
        self.handle = self.memory.ctypes.data


class Builder:
    """A graph under construction, or a part of one: what is done when the graph is launched."""

    def __init__(self, cuda, number):
        self.cuda, self.number, self.works, self.is_building = cuda, number, [], False
        self.stream = SimpleNamespace(handle=self)
        self.defaults = []  # what conditions become when the graph begins

    def begin_building(self):
        self.is_building = True

    def end_building(self):
        assert self.is_building
        self.is_building = False

    def add(self, work):
        assert self.is_building
        self.works.append(work)

    def create_condition(self, default_value=None):
        """Make one that has any value at first, and keeps it where there is no default."""
        assert self.is_building
        self.cuda.n_conditions += 1
        value = np.ones(1, np.uint32)
        if default_value is not None:
            self.defaults.append(lambda: value.fill(default_value))
        return Condition(value)

    def if_then(self, condition):
        part = Builder(self.cuda, self.number)
        self.add(lambda: part.run_if(condition))
        return part

    def run_if(self, condition):
        self.cuda.emulated.finish()
        if condition.value[0]:
            self.run()

    def run(self):
        for work in self.works:
            work()

    def complete(self):
        assert not self.is_building
        return self

    def launch(self, stream):
        self.cuda._use(stream.number)
        for default in self.defaults:
            default()
        self.run()


class Condition:
    """A condition of a graph; its handle is where the value is."""

    def __init__(self, value):
        self.value = value


class Stream:
    """Work in its order; copies from pinned memory are done when somebody waits for them.

    So are launches: what waits for no stream of theirs may find them not yet done.
    """

    def __init__(self, cuda, number):
        self.cuda, self.number, self.left, self.n_done = cuda, number, [], 0
        self.has_launched = False
        self.handle = self

    def __int__(self):
        return 1000 + self.number  # as an address: no stream that DLPack has a number for

    def sync(self):
        self.record().sync()

    def wait(self, other):
        self.cuda._use(self.number)
        self.cuda.waits.append((int(self), int(other)))
        if other is not self.cuda.LEGACY_DEFAULT_STREAM:
            other.sync()

    def record(self):
        self.cuda._use(self.number)
        with self.cuda.lock:
            end = self.n_done + len(self.left)
        return SimpleNamespace(sync=lambda: self._do(end), handle=("event", int(self)))

    def _do(self, end):
        self.cuda._use(self.number)
        with self.cuda.lock:
            if self.has_launched:
                self.cuda.emulated.finish()
            while self.n_done < end:
                ctypes.memmove(*self.left.pop(0))
                self.n_done += 1


def launch_config(*, grid, block, shmem_size, programmatic_stream_serialization):
    """Return the options of a launch; of sizes cuda-core takes Python's integers alone."""
    assert all(type(n) is int and n >= 1 for n in (*grid, block)), (grid, block)
    early = programmatic_stream_serialization
    return {
        "grid": grid,
        "block": block,
        "shmem_size": shmem_size,
        "programmatic_stream_serialization": early,
    }


class EmulatedCuda:
    def __init__(self, emulated, n_devices=1, n_bytes=1 << 30):
        self.emulated, self.free, self.n_bytes = emulated, n_bytes, n_bytes
        self.n_conditions, self.version = 0, 13000  # of the driver
        self.waits = []  # (stream, the one that it waits for)
        self.LEGACY_DEFAULT_STREAM = 1
        self.pinned = []  # where it begins and ends
        self.lock = threading.RLock()  # of what waits in streams
        self.calls_left = None  # until one fails; None: all succeed
        self.current = threading.local()
        self.devices = [self._device(i) for i in range(n_devices)]
        self.Device = SimpleNamespace(get_all_devices=lambda: self.devices)
        self.CUresult = SimpleNamespace(CUDA_SUCCESS=SUCCESS)
        self.CUfunction_attribute = SimpleNamespace(
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=MOST_SHARED
        )
        self.LaunchConfig = launch_config
        self.ObjectCode = SimpleNamespace(from_cubin=self._module)

    def _device(self, number):
        return SimpleNamespace(
            name="Emulated GPU", device_id=number, compute_capability=(9, 0),
            set_current=lambda: setattr(self.current, "number", number),
            create_stream=lambda: Stream(self, number),
            allocate=lambda n_bytes, stream: self._allocate(n_bytes, number),
            create_graph_builder=lambda: Builder(self, number),
        )  # fmt: skip

    def _use(self, number):
        """Fail where it is time to, or another device is the thread's."""
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise RuntimeError(LOST)
        assert getattr(self.current, "number", None) == number, "another device's context"

    def _allocate(self, n_bytes, number):
        self._use(number)
        if n_bytes > self.free:
            raise MemoryError("CUDA_ERROR_OUT_OF_MEMORY")
        self.free -= n_bytes
        return Buffer(self.emulated, n_bytes)

    def _module(self, kernel, name):
        """Return a module whose kernel may have no more shared memory than it was allowed."""
        loaded, shared = self.emulated.load(kernel), kernel.shared
        made = SimpleNamespace(loaded=loaded, needs=shared, allowed=0)
        made.handle = made
        return SimpleNamespace(get_kernel=lambda name: made)

    def cuKernelSetAttribute(self, attribute, n_bytes, kernel, number):
        assert attribute == MOST_SHARED
        assert number < len(self.devices)
        kernel.allowed = n_bytes
        return (SUCCESS,)

    def launch(self, stream, config, loaded, *arguments):
        if isinstance(stream, Builder):
            stream.add(lambda: self._launch(config, loaded, arguments))
            return
        self._use(stream.number)
        stream.has_launched = True
        self._launch(config, loaded, arguments)

    def _launch(self, config, loaded, arguments):
        given = [
            DeviceArray((), None, argument.memory) if isinstance(argument, Buffer)
            else np.uint64(argument.value.ctypes.data) if isinstance(argument, Condition)
            else None if isinstance(argument, np.uint64) and argument == 0
            else argument
            for argument in arguments
        ]  # fmt: skip
        is_early = config["programmatic_stream_serialization"]
        assert loaded.needs == config["shmem_size"] == loaded.allowed, "shared memory"
        self.emulated.launch(
            loaded.loaded, config["grid"], config["block"], given, is_early=is_early
        )

    def LegacyPinnedMemoryResource(self):
        return SimpleNamespace(allocate=self._pin)

    def _pin(self, n_bytes):
        pinned = Buffer(self.emulated, n_bytes)
        self.pinned.append((pinned.handle, pinned.handle + n_bytes))
        return pinned

    def _copy(self, to, origin, n_bytes, stream):
        if isinstance(stream, Builder):
            stream.add(lambda: self._move(to, origin, n_bytes))
            return (SUCCESS,)
        self._use(stream.number)
        if any(begin <= origin < end for begin, end in self.pinned):
            with self.lock:
                stream.left.append((to, origin, n_bytes))
        else:
            stream.sync()
            self._move(to, origin, n_bytes)
        return (SUCCESS,)

    def _move(self, to, origin, n_bytes):
        self.emulated.finish()
        ctypes.memmove(to, origin, n_bytes)

    def cuStreamWaitEvent(self, stream, event, flags):
        """Note which stream waits for which."""
        self._use(getattr(self.current, "number", None))
        self.waits.append((int(stream), event[1]))
        return (SUCCESS,)

    cuMemcpyHtoDAsync = cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = _copy

    def cuDriverGetVersion(self):
        return SUCCESS, self.version

    def cuMemGetInfo(self):
        return SUCCESS, self.free, self.n_bytes
