"""A device for CUDA tests: a GPU where there is one, and everywhere an emulated one.

The emulated device compiles the kernels' own source for the CPU (see ``emulator.h``), so that
indices, layouts and orders of summation are tested on machines without a GPU.
"""

import ctypes
import fcntl
import functools
import hashlib
import os
import subprocess
import threading
import zlib
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from harness.emulated_cuda import EmulatedCuda

from mtpcore.backends import select
from mtpcore.backends.cuda import CudaBackend
from mtpcore.backends.cuda import device as talking
from mtpcore.backends.cuda.device import DeviceArray, find_device
from mtpcore.backends.cuda.launch import products
from mtpcore.backends.cuda.signature import read_signature
from mtpcore.errors import BackendError

HEADER = Path(__file__).with_name("emulator.h")
GUARD, NOISE = 1024, 0x5A
UNTOUCHED = bytes([NOISE]) * GUARD
ALIGNMENT = 256
"""Bytes; as of memory on a GPU."""
FLAGS = (
    *("-std=c++17", "-O1", "-march=native", "-ffp-contract=off", "-fPIC"),
    *("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"),
    *("-fvisibility=hidden", "-U_FORTIFY_SOURCE"),  # jumps from one stack to another
)


class Condition(NamedTuple):
    """Of a part of a graph; its handle is where the value is."""

    value: np.ndarray


BEFORE = ctypes.CFUNCTYPE(None)
"""What a launch that begins early calls where it waits for the one before."""


class Loaded(NamedTuple):
    """A kernel that can run, and of its parameters the arrays it writes to, and the counters."""

    emulate: Any
    written: tuple[int, ...]
    counters: int | None


class Array(ctypes.Structure):
    """An array that a launch writes to."""

    _fields_ = (("at", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Started(NamedTuple):
    """A launch, and the one before that it begins earlier than."""

    loaded: Loaded
    grid: tuple[int, ...]
    block: int
    arguments: tuple
    before: "Started | None"


class EmulatedDevice:
    """Implements ``mtpcore.backends.cuda.device.Device``; memory is uint8[n_bytes] of NumPy."""

    name, dlpack_device, stream = "emulated", (1, 0), None

    def __init__(self, folder):
        self.folder, self.loaded, self.functions, self.recorded = folder, {}, {}, None
        self.sent, self.n_arrived, self.lock = [], 0, threading.RLock()
        self.last = None  # a launch that was not waited for
        self._build(f"{HEADER.name}.gch", "-x", "c++-header", HEADER)
        self.emulator = self._build("emulator.o", "-O2", "-c", HEADER.with_suffix(".cc"))

    def empty(self, shape, dtype):
        """Make an array of noise, with more before and behind it that nobody may change."""
        dtype, size = np.dtype(dtype), int(np.prod(shape))
        n_bytes = size * dtype.itemsize
        space = np.full(GUARD + n_bytes + GUARD + ALIGNMENT, NOISE, np.uint8)
        memory = space[GUARD + -address(space) % ALIGNMENT :][:n_bytes]
        if dtype.kind == "f":
            memory.view(dtype).fill(np.nan)
        return DeviceArray(shape, dtype, memory)

    def upload(self, array, into=None):
        assert self.recorded is None, "an upload is no part of a graph"
        into = into or self.empty(array.shape, array.dtype)
        self.write(into, 0, np.ascontiguousarray(array).tobytes())
        return into

    def download(self, array, n_rows):
        shape = (n_rows, *array.shape[1:])
        n_bytes = int(np.prod(shape)) * array.dtype.itemsize
        return np.frombuffer(self.read(array, 0, n_bytes), array.dtype).reshape(shape).copy()

    def copy(self, source, source_at, target, target_at, n_bytes):
        if self.recorded is not None:
            arguments = source, source_at, target, target_at, n_bytes
            self.recorded.append((self.copy, arguments))
            return
        self.finish()
        assert 0 <= source_at <= source_at + n_bytes <= source.memory.nbytes
        self.write(target, target_at, source.memory[source_at : source_at + n_bytes].tobytes())

    def read(self, array, at, n_bytes):
        assert self.recorded is None, "nothing comes home within a graph"
        self.finish()
        assert 0 <= at <= at + n_bytes <= array.memory.nbytes
        return array.memory[at : at + n_bytes].tobytes()

    def write(self, array, at, data):
        self.finish()
        values = np.frombuffer(data, np.uint8)
        assert 0 <= at <= at + len(values) <= array.memory.nbytes
        array.memory[at : at + len(values)] = values

    def address(self, array):
        return array.memory.ctypes.data

    def take(self, address, n_bytes, into):
        self.write(into, 0, ctypes.string_at(address, n_bytes))

    def precede(self, stream):
        assert stream is None, "the host has no streams"
        self.finish()

    def follow(self):
        raise AssertionError("the host has no streams")

    def pin(self, n_bytes):
        return np.full(n_bytes, NOISE, np.uint8)

    def send(self, source, target, at):
        """Copy as late as a GPU may: when somebody waits for it, and not before."""
        with self.lock:
            self.sent.append((source, target, at))

    def mark(self):
        with self.lock:
            return self.n_arrived + len(self.sent)

    def wait(self, mark):
        with self.lock:
            while self.n_arrived < mark:
                source, target, at = self.sent.pop(0)
                self.write(target, at, source)
                self.n_arrived += 1

    def follow_sent(self):
        self.wait(self.mark())

    def load(self, kernel):
        if kernel not in self.loaded:
            signature = read_signature(kernel.source)
            parameters = signature.parameters
            declared = ", ".join(f"{of.type} {of.name}" for of in parameters)
            names = ", ".join(of.name for of in parameters)
            defines = "".join(f"#define {key} {value}\n" for key, value in kernel.defines)
            source = (
                f"{defines}{kernel.source}\n"
                f'extern "C" __attribute__((visibility("default"))) bool emulate('
                f"void (*before)(), const emulator::Array *arrays, unsigned n_arrays, "
                f"unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned threads, "
                f"{declared})\n{{ return emulator::run(dim3{{grid_x, grid_y, grid_z}}, threads, "
                f"[&] {{ {signature.name}({names}); }}, before, arrays, n_arrays); }}"
            )
            stem = hashlib.sha256(source.encode()).hexdigest()[:32]
            built = self._build(
                f"{stem}.so",
                *("-shared", "-Winvalid-pch", "-include", HEADER.name, "-x", "c++", "-"),
                *("-x", "none", self.emulator, "-lstdc++", "-lm"),
                text=source,
            )
            emulate = self.functions.setdefault(stem, ctypes.CDLL(built).emulate)
            emulate.restype = ctypes.c_bool
            counters = next((i for i, of in enumerate(parameters) if of.name == "counters"), None)
            written = (i for i, of in enumerate(parameters) if of.is_written)
            kept = tuple(i for i in written if i != counters)
            self.loaded[kernel] = Loaded(emulate, kept, counters)
        return self.loaded[kernel]

    def record(self, work):
        """Keep launches and copies, and what they were told, to be done when they are replayed."""
        assert self.recorded is None, "one graph at a time"
        self.recorded = []
        try:
            work()
            return self.recorded
        finally:
            self.recorded = None

    def condition(self):
        value = np.zeros(1, np.uint32)
        self.recorded.append((value.fill, (0,)))
        return Condition(value)

    def when(self, condition, work):
        whole, self.recorded = self.recorded, []
        try:
            work()
        finally:
            part, self.recorded = self.recorded, whole
        whole.append((self._replay_if, (condition, part)))

    def _replay_if(self, condition, part):
        self.finish()
        if condition.value[0]:
            self.replay(part)

    def replay(self, graph):
        self.finish()
        for work, arguments in graph:
            work(*arguments)

    def _build(self, name, *arguments, text=None):
        """Return a compiled file of the folder; one of the processes that share it makes it.

        Flags are the same each time, or the compiled header goes unused.
        """
        built = self.folder / name
        with (self.folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not built.exists():
                part = self.folder / f"{name}.part"
                done = subprocess.run(
                    ["gcc", *FLAGS, *arguments, "-o", part],
                    cwd=self.folder,
                    input=text,
                    capture_output=True,
                    text=True,
                )
                assert done.returncode == 0, done.stderr
                assert "invalid-pch" not in done.stderr, done.stderr
                part.rename(built)
        return str(built)

    def launch(self, loaded, grid, block, arguments, *, is_early=False):
        """Keep a launch until somebody looks, or the next one waits for it."""
        x, y, z = (*grid, 1, 1)[:3]
        assert x >> 31 == y >> 16 == z >> 16 == 0, "more CTAs along an axis than a GPU takes"
        if self.recorded is not None:
            given = loaded, grid, block, arguments
            self.recorded.append((partial(self.launch, is_early=is_early), given))
            return
        with self.lock:
            chain, last = [], self.last
            while last:
                chain.append(last.loaded)
                last = last.before
            if not is_early or loaded in chain:  # a kernel's fibers run one launch at a time
                self.finish()
            self.last = Started(loaded, (x, y, z), block, arguments, self.last)

    def finish(self):
        """Run what was launched last, and what it began before."""
        with self.lock:
            last, self.last = self.last, None
            if last:
                self._run(last)

    def _run(self, started):
        def c_value(argument):
            if argument is None:
                return ctypes.c_void_p(None)
            if isinstance(argument, DeviceArray):
                return ctypes.c_void_p(address(argument.memory))
            if isinstance(argument, Condition):
                return ctypes.c_uint64(argument.value.ctypes.data)
            return c_type(argument.dtype)(argument)

        failed = []

        def run_before():
            try:
                self._run(started.before)
            except AssertionError as error:  # nothing passes through C
                failed.append(error)

        wait = BEFORE(run_before) if started.before else BEFORE()
        loaded, given = started.loaded, started.arguments
        counters = None if loaded.counters is None else given[loaded.counters]
        shared = [given[i].memory for i in loaded.written if counters and given[i]]
        arrays = (Array * len(shared))(*((address(memory), memory.nbytes) for memory in shared))
        grid = started.grid
        arguments = map(c_value, given)
        is_done = loaded.emulate(wait, arrays, len(arrays), *grid, started.block, *arguments)
        if failed:
            raise failed[0]
        assert is_done, "threads wait for each other forever, or never for the launch before"
        if counters:
            assert not counters.memory.any(), "a counter was not put back to zero"
        for argument in started.arguments:
            if isinstance(argument, DeviceArray):
                begin = address(argument.memory)
                for guard in (begin - GUARD, begin + argument.memory.nbytes):
                    assert ctypes.string_at(guard, GUARD) == UNTOUCHED, "wrote outside an array"


def address(memory):
    return memory.__array_interface__["data"][0]


c_type = functools.cache(np.ctypeslib.as_ctypes_type)


@pytest.fixture(scope="session")
def emulated(tmp_path_factory):
    """Kernels are compiled once for all processes of a run."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder /= "emulated"
    folder.mkdir(exist_ok=True)
    return EmulatedDevice(folder)


@pytest.fixture(autouse=True)
def sharing(request, monkeypatch):
    """In a third each of all tests CTAs share tiles as on a GPU, a few do, or one makes all."""
    choice = zlib.crc32(request.node.nodeid.encode()) % 3
    at_once, n_sharing = ((products._AT_ONCE, products._SHARING), (4, 3), (1, 1))[choice]
    monkeypatch.setattr(products, "_AT_ONCE", at_once)
    monkeypatch.setattr(products, "_SHARING", n_sharing)


@pytest.fixture
def cuda(emulated, monkeypatch):
    """NVIDIA's packages with two GPUs, whose kernels run on the CPU."""
    made = EmulatedCuda(emulated, n_devices=2)
    monkeypatch.setattr(talking, "import_cuda", lambda module: made)
    monkeypatch.setattr(talking, "compile_kernel", lambda kernel, architecture: kernel)
    monkeypatch.setattr(select, "_made", {})
    return made


DEVICES = ["emulated", pytest.param("gpu", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request):
    """Both kinds of device; the GPU is skipped where there is none."""
    return find(request)


@pytest.fixture(scope="session", params=DEVICES)
def backend(request):
    """The backend on both kinds of device."""
    return CudaBackend(find(request))


def find(request):
    if request.param == "emulated":
        return request.getfixturevalue("emulated")
    try:
        return find_device()
    except BackendError as error:
        pytest.skip(f"no GPU: {error.got}")
