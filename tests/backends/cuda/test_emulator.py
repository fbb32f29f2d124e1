"""The emulated device shows what a kernel gets wrong: it is seen on kernels that are wrong."""

import faulthandler
import os
from types import SimpleNamespace

import numpy as np
import pytest

from mtpcore.backends.cuda import compile as compiling

HALVES = """
extern "C" __global__ void __launch_bounds__(64)
    halves(const float *__restrict__ x, float *__restrict__ y, int n)
{
    __shared__ float kept[64];
    kept[threadIdx.x] = x[threadIdx.x];
    BARRIER
    y[threadIdx.x] = kept[threadIdx.x ^ 63] + (float)(blockIdx.x == 0) + (n ? kept[n] : 0.0f);
}
"""

SUMS = """
extern "C" __global__ void __launch_bounds__(64)
    sums(const float *__restrict__ x, float *__restrict__ y, int n)
{
    __shared__ float kept[64];
    float sum = 0.0f;
    for (int i = 0; i < n; i++) {
        kept[threadIdx.x] = x[threadIdx.x] + i;
        __syncthreads();
        float seen = kept[threadIdx.x ^ 63];
        for (int twice = 0; twice < 2; twice++)
            seen = __shfl_xor_sync(0xffffffffu, seen, 1);
        sum += seen;
        BARRIER
    }
    y[threadIdx.x] = sum;
}
"""

COPIES = """
extern "C" __global__ void __launch_bounds__(32)
    copies(const float *__restrict__ x, float *__restrict__ y, int n)
{
    __shared__ float4 ring[2][32];
    float sum = 0.0f;
    for (int i = 0; i < 2; i++) {
        copy_later(&ring[i][threadIdx.x], x + (i * 32 + threadIdx.x) * 4);
        end_group();
    }
    for (int i = 0; i < n; i++) {
        WAIT
        BARRIER
        sum += ring[i % 2][threadIdx.x ^ 1].x;
        READ
        if (i + 2 < n)
            copy_later(&ring[i % 2][threadIdx.x], x + ((i + 2) * 32 + threadIdx.x) * 4);
        end_group();
    }
    y[threadIdx.x] = sum;
}
"""

FOURS = """
extern "C" __global__ void __launch_bounds__(32)
    fours(const float *__restrict__ x, float *__restrict__ y, int from)
{
    if (threadIdx.x == 0)
        y[0] = (*(const float4 *)(x + from)).x;
}
"""

WAITING = """
extern "C" __global__ void __launch_bounds__(32)
    waiting(float *__restrict__ y)
{
    if (threadIdx.x)
        __syncthreads();
}
"""


def kernel(source, **defines):
    text = source
    for name, value in defines.items():
        text = text.replace(name, value)
    return Source(text)


class Source(SimpleNamespace):
    """What a device needs of a kernel."""

    defines = ()

    def __init__(self, source):
        super().__init__(source=source)

    def __hash__(self):
        return hash(self.source)


def run(device, made, n_threads, *arguments):
    device.launch(device.load(made), (1, 1), n_threads, arguments)
    device.finish()


@pytest.mark.parametrize("n_launches", range(4))
def test_a_missing_barrier_shows(emulated, n_launches):
    x = np.arange(64, dtype=np.float32)
    results = []
    for barrier in ("__syncthreads();", ""):
        loaded, y = kernel(HALVES, BARRIER=barrier), emulated.empty((64,), np.float32)
        run(emulated, loaded, 64, emulated.upload(x), y, np.int32(0))
        results.append(emulated.download(y, 64))
    assert np.array_equal(results[0], x[::-1] + 1)
    assert np.isnan(results[1]).any()


@pytest.mark.parametrize("n_launches", range(4))
def test_a_warp_that_runs_ahead_shows(emulated, n_launches):
    """It writes again what the other one is still to read."""
    x = np.arange(64, dtype=np.float32)
    results = []
    for barrier in ("__syncthreads();", ""):
        loaded, y = kernel(SUMS, BARRIER=barrier), emulated.empty((64,), np.float32)
        run(emulated, loaded, 64, emulated.upload(x), y, np.int32(3))
        results.append(emulated.download(y, 64))
    assert np.array_equal(results[0], 3 * x[::-1] + 3)
    assert not np.array_equal(*results)


WAIT, MEET = "wait_for_groups<1>();", "__syncwarp();"


@pytest.mark.parametrize("n_launches", range(4))
def test_copies_land_when_they_are_waited_for(emulated, n_launches):
    """One that nobody waits for shows, and so does a barrier that is missing on either side."""
    x = np.arange(4 * 128, dtype=np.float32).reshape(4, 32, 4)
    wanted = x[:, np.arange(32) ^ 1, 0].sum(axis=0)

    def sums(wait, landed, read):
        loaded, y = (
            kernel(COPIES, WAIT=wait, BARRIER=landed, READ=read),
            emulated.empty((32,), "f4"),
        )
        run(emulated, loaded, 32, emulated.upload(x), y, np.int32(4))
        return emulated.download(y, 32)

    assert (sums(WAIT, MEET, MEET) == wanted).all()
    for wrong in (("", MEET, MEET), ("wait_for_groups<2>();", MEET, MEET), (WAIT, "", MEET)):
        assert np.isnan(sums(*wrong)).any(), wrong
    assert not np.array_equal(sums(WAIT, MEET, ""), wanted)


def test_unwritten_memory_is_noise(emulated):
    assert np.isnan(emulated.download(emulated.empty((3,), np.float32), 3)).all()
    assert (emulated.download(emulated.empty((3,), np.int32), 3) > 1 << 30).all()


def test_a_write_behind_an_array_shows(emulated):
    x, y = emulated.upload(np.zeros(64, np.float32)), emulated.empty((63,), np.float32)
    with pytest.raises(AssertionError, match="outside an array"):
        run(emulated, kernel(HALVES, BARRIER="__syncthreads();"), 64, x, y, np.int32(0))


def test_threads_that_wait_forever_show(emulated):
    with pytest.raises(AssertionError, match="wait for each other forever"):
        run(emulated, Source(WAITING), 32, emulated.empty((1,), np.float32))


def test_an_unaligned_read_ends_the_process(emulated):
    """A GPU raises an error that cannot be caught, too."""
    x, y = emulated.upload(np.arange(8, dtype=np.float32)), emulated.empty((1,), np.float32)
    run(emulated, Source(FOURS), 32, x, y, np.int32(4))
    assert emulated.download(y, 1) == 4
    if not (child := os.fork()):
        faulthandler.disable()
        run(emulated, Source(FOURS), 32, x, y, np.int32(1))
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


EARLY = """
extern "C" __global__ void __launch_bounds__(64)
    early(const float *__restrict__ x, const float *__restrict__ w, float *__restrict__ y)
{
    float sum = w[threadIdx.x];
    BEFORE
    WAIT
    AFTER
    y[threadIdx.x] = sum;
}
"""
READ = "sum += x[threadIdx.x];"


@pytest.mark.parametrize("n_launches", range(4))
def test_a_read_before_the_launch_before_has_ended_shows(emulated, n_launches):
    """It finds what was there before that; weights may be read at any time."""
    values, ones = np.arange(64, dtype=np.float32), np.ones(64, np.float32)
    results = []
    for before, after in (("", READ), (READ, "")):
        x, w, y = emulated.empty((64,), np.float32), emulated.upload(ones), emulated.upload(ones)
        first = emulated.load(kernel(HALVES, BARRIER="__syncthreads();"))
        source = kernel(EARLY, BEFORE=before, WAIT="wait_for_launches();", AFTER=after)
        second = emulated.load(source)
        given = emulated.upload(values)
        emulated.launch(first, (1, 1), 64, (given, x, np.int32(0)))
        emulated.launch(second, (1, 1), 64, (x, w, y), is_early=True)
        results.append(emulated.download(y, 64))
    assert np.array_equal(results[0], values[::-1] + 2)
    assert np.isnan(results[1]).all()


def test_an_early_launch_that_never_waits_shows(emulated):
    x, y = emulated.upload(np.zeros(64, np.float32)), emulated.empty((64,), np.float32)
    first = emulated.load(kernel(HALVES, BARRIER="__syncthreads();"))
    second = emulated.load(kernel(EARLY, BEFORE=READ, WAIT="", AFTER=""))
    emulated.launch(first, (1, 1), 64, (x, y, np.int32(0)))
    emulated.launch(second, (1, 1), 64, (x, x, y), is_early=True)
    with pytest.raises(AssertionError, match="never for the launch before"):
        emulated.finish()


LAST = """
extern "C" __global__ void __launch_bounds__(64)
    last(const float *__restrict__ x, float *y, float *sums, unsigned *counters)
{
    y[blockIdx.x * 64 + threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x] + 1.0f;
    if (!ends_last(counters, gridDim.x))
        return;
    float sum = 0.0f;
    for (int i = 0; i < (int)gridDim.x; i++)
        sum += y[i * 64 + (threadIdx.x ^ 63)];
    sums[threadIdx.x] = sum;
}
"""
COUNT = "atomicInc(counter, n_ctas - 1)"


def sums_of_last(device, left_out, instead=""):
    """Let the CTA that ends last add what all have made, four times."""
    text = compiling._text("last.cuh")
    assert left_out in text
    loaded = device.load(Source(text.replace(left_out, instead) + LAST))
    x = np.arange(5 * 64, dtype=np.float32)
    counters = device.upload(np.zeros(1, np.uint32))
    made = []
    for _ in range(4):
        y, sums = device.empty((5, 64), np.float32), device.empty((64,), np.float32)
        device.launch(loaded, (5, 1), 64, (device.upload(x), y, sums, counters))
        made.append(device.download(sums, 64))
        assert np.array_equal(device.download(y, 5).reshape(-1), x + 1)
    wanted = (x.reshape(5, 64) + 1).sum(axis=0)[::-1]
    return [np.array_equal(own, wanted) for own in made]


def test_the_cta_that_ends_last_finds_what_all_have_made(emulated):
    assert all(sums_of_last(emulated, ""))


@pytest.mark.parametrize(
    "left_out", ["__threadfence();\n        n_before", "__threadfence();\n    }"]
)
def test_a_missing_fence_shows(emulated, left_out):
    """In every launch, on either side."""
    kept = left_out.removeprefix("__threadfence()")
    assert not any(sums_of_last(emulated, left_out, kept))


@pytest.mark.parametrize(
    "left_out", ["__syncthreads(); /* all threads have", "__syncthreads();\n    return"]
)
def test_a_missing_barrier_around_a_count_shows(emulated, left_out):
    kept = left_out.removeprefix("__syncthreads();")
    assert not all(sums_of_last(emulated, left_out, kept))


def test_a_counter_that_is_not_put_back_shows(emulated):
    with pytest.raises(AssertionError, match="not put back to zero"):
        sums_of_last(emulated, COUNT, COUNT.replace(" - 1", ""))


def test_a_cta_that_reads_what_another_wrote_shows(emulated):
    """Though it has run before: a GPU does not say which one does."""
    assert not any(sums_of_last(emulated, COUNT, "n_ctas - 1"))
