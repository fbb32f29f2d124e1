"""Packing at load: what it reads, when, and how much memory it has beside what it makes."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from harness.generated import FAMILIES, Sizes, write_generated
from harness.matrices import assert_same_bits, random_rows
from programs import Tensor, random_tensors

import mtpcore
from mtpcore._ext._matmul import pack
from mtpcore.backends.cpu.weights import _CONVERTED as CONVERTED
from mtpcore.backends.cpu.weights import CpuWeights as Packed
from mtpcore.gguf import open_model_file, write_model_file
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.graph.program import Weight
from mtpcore.testing import Weights

MIB = 1 << 20


@pytest.fixture(scope="module")
def large_file(tmp_path_factory):
    """Matrices, a stack and a type without kernels; 180 MiB once they are packed."""
    path = tmp_path_factory.mktemp("large") / "large.gguf"
    tensors = {f"{i}.weight": random_rows(Type.Q8_0, 8192, 2048, i) for i in range(6)}
    tensors["experts.weight"] = random_rows(Type.Q4_K, 64 * 512, 2048).reshape(64, 512, -1)
    types = dict.fromkeys(tensors, "Q8_0") | {"experts.weight": "Q4_K", "foreign.weight": "TQ2_0"}
    blocks = np.random.default_rng(1).integers(0, 256, (4096, 8, 66), np.uint8)
    blocks[..., 64:] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    tensors["foreign.weight"] = blocks.reshape(4096, -1)
    tensors["router.weight"] = np.ones((64, 2048), np.float32)
    write_model_file(path, "toy", {}, tensors, types)
    return path


PEAK = """
import sys
from mtpcore.backends.cpu.backend import CpuBackend
from mtpcore.gguf import open_model_file
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.testing import Weights

def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key + ":"))

file = open_model_file(sys.argv[1])
g = GraphBuilder("memory", file.tensors)
x = g.embed(g.inputs.tokens, "0.weight")
made = [g.matmul(x, f"{i}.weight") for i in range(6)]
made.append(g.matmul(x, "foreign.weight"))
made.append(g.route(x, "foreign.weight", n_used=2)[1])
ids, _ = g.route(x, "router.weight", n_used=2)
made.append(g.merge_heads(g.expert_matmul(x, ids, "experts.weight")))
program = g.finish(Outputs(**{f"o{i}": one for i, one in enumerate(made)}))
source = Weights(file.tensors)
backend = CpuBackend()
open("/proc/self/clear_refs", "w").write("5")
before = status("VmHWM")
plan = backend.plan(program, source, n_batch=8, n_ctx=8, threads=int(sys.argv[2]), stores=[])
plan.prepare()
peak = status("VmHWM")
packed = [made if type(made) is list else [made] for made in source.packed.values()]
print(sum(one.nbytes for made in packed for one in made), peak - before, status("VmRSS") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="keeps freed memory")
@pytest.mark.parametrize("threads", ["2", "16"])
def test_packing_takes_little_memory_beside_what_it_makes(threads, large_file):
    command = [sys.executable, "-c", PEAK, str(large_file), threads]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    packed, peak, after = map(int, done.stdout.split())
    assert packed > 160 * MIB
    assert peak < packed + 64 * MIB
    assert after < packed + 16 * MIB


LOADING = """
import sys
import mtpcore

def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key + ":"))

mtpcore.Context(mtpcore.load_model("demo"), 32).prepare()  # modules are no weights
open("/proc/self/clear_refs", "w").write("5")
before = status("VmHWM")
model = mtpcore.load_model(sys.argv[1])
context = mtpcore.Context(model, 32, n_batch=32, threads=16)
context.prepare()
peak = status("VmHWM")
packed = [made if type(made) is list else [made] for made in model.packed.values()]
print(sum(one.nbytes for made in packed for one in made), peak - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="keeps freed memory")
def test_a_model_and_a_context_take_little_memory_beside_its_weights(tmp_path):
    sizes = Sizes(width=1024, n_ff=4096, n_layers=3)
    path = write_generated(tmp_path / "model.gguf", "llama", "F32", sizes=sizes)
    command = [sys.executable, "-c", LOADING, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    packed, peak = map(int, done.stdout.split())
    assert packed > 140 * MIB
    assert peak < packed + 64_000_000


class Reading:
    """How many values threads have read and not yet packed; they wait for each other in between."""

    def __init__(self, n_threads, timeout):
        self.now = self.most = 0
        self._timeout, self.barrier = timeout, threading.Barrier(n_threads)
        self._lock = threading.Lock()

    def begin(self, n_values):
        with self._lock:
            self.now += n_values
            self.most = max(self.most, self.now)
        with contextlib.suppress(threading.BrokenBarrierError):
            self.barrier.wait(self._timeout)

    def end(self, n_values):
        with self._lock:
            self.now -= n_values


class Counted(Tensor):
    """A tensor that counts what is read of it; its values are float32, whatever its type says."""

    def __init__(self, shape, reading, kind):
        super().__init__(np.zeros(shape))
        self._reading, self.type = reading, int(kind)

    def array(self):
        return np.zeros(self.shape, np.float32)

    def rows(self, begin, end):
        self._reading.begin((end - begin) * self.shape[-1])
        return super().rows(begin, end)

    def release(self, begin, end):
        self._reading.end((end - begin) * self.shape[-1])

    def stream(self, native_types, ranges, start):
        take, blocks = start(int(Type.F32)), self.raw()
        for begin, end in ranges:
            self.rows(begin, end)
            take(begin, blocks[begin:end])
            self.release(begin, end)


def pack_counted(n, shape, reading, threads):
    """Convert so many matrices of a type without kernels."""
    tensors = {f"{i}.weight": Counted(shape, reading, Type.F64) for i in range(n)}
    tensors |= random_tensors(0, e=(40, shape[1]))
    g = GraphBuilder("counted", tensors)
    x = g.embed(g.inputs.tokens, "e.weight")
    made = [g.matmul(x, f"{i}.weight") for i in range(n)]
    source = Weights(tensors)
    packed = Packed(source)
    packed.prepare(g.finish(Outputs(**{f"o{i}": one for i, one in enumerate(made)})), threads)
    assert len(source.packed) == n + 1
    assert reading.now == 0


@pytest.fixture
def small_windows(monkeypatch):
    """Let windows be of 2048 values, so that small matrices take several."""
    monkeypatch.setattr("mtpcore.backends.cpu.weights._CONVERTED", 2048)
    return 2048


@pytest.mark.parametrize(("threads", "windows"), [(1, 1), (4, 4), (8, 4)])
def test_many_threads_read_no_more_at_once_than_four(threads, windows, small_windows):
    # All threads wait until each has read its window, so what counts is no matter of luck.
    reading = Reading(threads, timeout=20)
    pack_counted(8, (128, 32), reading, threads)
    assert reading.most == windows * small_windows
    assert not reading.barrier.broken


@pytest.mark.parametrize(("width", "at_once"), [(64, 4), (96, 2), (160, 1), (512, 1)])
def test_threads_wait_where_rows_are_longer_than_their_share(width, at_once, small_windows):
    # One more than may read at once would be let through, and is waited for.
    reading = Reading(at_once + 1, timeout=0.2)
    pack_counted(8, (64, width), reading, 8)
    assert 0 < reading.most <= at_once * 32 * width


def test_all_windows_together_are_a_part_of_what_packing_may_take():
    assert 4 * CONVERTED * 20 < 56 * MIB  # bytes: of float32, with copies


def is_mapped(made):
    return all(one.is_mapped for one in (made if isinstance(made, list) else [made]))


@pytest.mark.parametrize("family", FAMILIES)
def test_without_packing_weights_stay_in_the_file(family, tmp_path):
    path, rows = write_generated(tmp_path / "model.gguf", family, "Q4_K"), []
    for repack in (True, False):
        model = mtpcore.load_model(path, repack=repack)
        context = mtpcore.Context(model, 32, threads=2)
        rows.append(context.process(mtpcore.Batch.of([1, 2, 3], outputs="all")).logits)
        matrices = {key: made for key, made in model.packed.items() if key[1] != "vector"}
        assert {is_mapped(made) for made in matrices.values()} == {not repack}
        assert len(matrices) > 5
    assert_same_bits(*rows)


def test_without_packing_other_types_are_converted_all_the_same(tmp_path, caplog):
    path, rows = write_generated(tmp_path / "model.gguf", "llama", "TQ2_0"), []
    for repack in (True, False):
        with mtpcore.load_model(path, repack=repack) as model, caplog.at_level("INFO", "mtpcore"):
            context = mtpcore.Context(model, 32)
            rows.append(context.process(mtpcore.Batch.of([1, 2, 3], outputs="all")).logits)
            kinds = {key[2]: made for key, made in model.packed.items() if key[1] == "matrix"}
        assert not kinds["blk.0.attn_q.weight"].is_mapped
    assert_same_bits(*rows)
    said = [record.getMessage() for record in caplog.records]
    assert sum("TQ2_0 tensors are converted to F16" in line for line in said) == 2


def test_a_router_s_matrix_is_widened_though_the_rest_stays_in_the_file():
    tensors = random_tensors(0, Type.Q8_0, q=(70, 64)) | random_tensors(0, f=(70, 64))
    weights = Packed(Weights(tensors, repack=False))
    exact = {}
    for name in ("q", "f"):
        weight = Weight(f"{name}.weight", name, (70, 64))
        assert weights.matrix(weight).is_mapped
        exact[name] = weights.exact_matrix(weight)
    assert [exact[name].is_mapped for name in exact] == [False, True]
    whole = pack(tensors["q.weight"].array().view(np.uint8), Type.F32, 70, 64)
    assert exact["q"].type == Type.F32
    rows = [[one.row(i) for i in range(70)] for one in (exact["q"], whole)]
    assert_same_bits(*rows)


def test_weights_in_a_file_outlive_the_model_that_was_closed(tmp_path):
    path = write_generated(tmp_path / "model.gguf", "llama", "Q8_0")
    model = mtpcore.load_model(path, repack=False)
    context = mtpcore.Context(model, 32)
    wanted = context.process(mtpcore.Batch.of([1, 2])).logits
    model.close()
    context.remove(0)
    assert_same_bits(context.process(mtpcore.Batch.of([1, 2])).logits, wanted)


def test_tensors_are_packed_whatever_windows_they_are_read_in(tmp_path, monkeypatch):
    monkeypatch.setattr("mtpcore.backends.cpu.weights._CONVERTED", 1)
    path = tmp_path / "some.gguf"
    rows = {"m": random_rows(Type.Q5_0, 70, 64), "s": random_rows(Type.Q8_0, 3 * 40, 64)}
    shaped = {"m": rows["m"], "s": rows["s"].reshape(3, 40, -1)}
    write_model_file(path, "toy", {}, shaped, {"m": "Q5_0", "s": "Q8_0"})
    packed = Packed(Weights(open_model_file(path).tensors))
    got = packed.matrix(Weight("m", "m", (70, 64)))
    whole = pack(rows["m"], Type.Q5_0, 70, 64)
    assert_same_bits([got.row(i) for i in range(70)], [whole.row(i) for i in range(70)])
    whole = pack(rows["s"], Type.Q8_0, 120, 64)
    got = packed.stack(Weight("s", "s", (3, 40, 64)))
    assert [one.shape for one in got] == [(40, 64)] * 3
    found = [one.row(i) for one in got for i in range(40)]
    assert_same_bits(found, [whole.row(i) for i in range(120)])


@pytest.mark.parametrize("repack", [True, False])
def test_only_what_is_converted_leaves_the_file_ahead(repack):
    tensors = random_tensors(0, Type.Q8_0, m=(64, 64))
    g = GraphBuilder("ahead", tensors)
    x = g.embed(g.inputs.tokens, "m.weight")
    _, shares = g.route(x, "m.weight", n_used=2)
    program = g.finish(Outputs(own=g.matmul(x, "m.weight"), routed=shares))
    source = Weights(tensors, repack=repack)
    Packed(source).prepare(program, 2)
    mapped = {form: made.is_mapped for (_, form, _), made in source.packed.items()}
    assert mapped == {"exact matrix": False, "matrix": True}


def test_an_interrupt_ends_conversion_before_the_next_window(tmp_path, monkeypatch):
    """What was converted by then is kept, and the rest is converted the next time."""
    monkeypatch.setattr("mtpcore.backends.cpu.weights._CONVERTED", 1 << 12)
    path = write_generated(tmp_path / "model.gguf", "llama", "TQ2_0")
    model, handled, n_read = mtpcore.load_model(path), threading.Event(), []
    release = mtpcore.gguf.Tensor.release

    def interrupt(tensor, begin, end):
        release(tensor, begin, end)
        n_read.append(end - begin)
        if len(n_read) == 40:
            os.kill(os.getpid(), signal.SIGINT)
        if len(n_read) >= 40:
            handled.wait(60)
            time.sleep(0.05)

    def handle(number, frame):
        handled.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        monkeypatch.setattr(mtpcore.gguf.Tensor, "release", interrupt)
        with pytest.raises(KeyboardInterrupt):
            mtpcore.Context(model, 64, threads=2).prepare()
    finally:
        signal.signal(signal.SIGINT, before)
        monkeypatch.setattr(mtpcore.gguf.Tensor, "release", release)
    assert 40 <= len(n_read) < 60
    kept = dict(model.packed)
    batch = mtpcore.Batch.of([5, 6, 7], outputs="all")
    logits = [
        mtpcore.Context(one, 64).process(batch).logits for one in (model, mtpcore.load_model(path))
    ]
    assert np.array_equal(*logits)
    assert kept.items() <= dict(model.packed).items()
