"""Arguments are given by the names that a kernel's own source has for them."""

import re

import numpy as np
import pytest

from mtpcore.backends.cuda import compile as compiling
from mtpcore.backends.cuda.compile import Kernel
from mtpcore.backends.cuda.device import DeviceArray
from mtpcore.backends.cuda.launch import KERNELS
from mtpcore.backends.cuda.launch.rows import copy_rows
from mtpcore.backends.cuda.launch.step import start
from mtpcore.backends.cuda.signature import read_signature

SHIFT = """
static __device__ float f(int n) { return n; }
extern "C" __global__ void __launch_bounds__(256, 2)
    shift(const float *__restrict__ x, float *ALONE y, int n, long long at, unsigned size,
          double magnitude, float eps, unsigned long long condition,
          const float *by = nullptr, int is_last = 0)
{
"""
X, Y = (DeviceArray((4,), np.dtype(np.float32), object()) for _ in range(2))
GIVEN = {"x": X, "y": Y, "n": 3, "at": 1 << 40, "size": 7, "magnitude": 0.1, "eps": 0.1}
GIVEN["condition"] = np.uint64(9)


def test_arguments_are_in_the_order_and_of_the_types_of_the_source():
    *arguments, by, is_last = read_signature(SHIFT).arguments(**dict(reversed(GIVEN.items())))
    assert arguments[:2] == [X, Y]
    assert [(type(number), number) for number in arguments[2:]] == [
        *((np.int32, 3), (np.int64, 1 << 40), (np.uint32, 7)),
        *((np.float64, 0.1), (np.float32, np.float32(0.1)), (np.uint64, 9)),
    ]
    assert (by, type(is_last), is_last) == (None, np.int32, 0)
    assert read_signature(SHIFT).arguments(**GIVEN, by=X, is_last=True)[-2:] == (X, 1)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"m": 3}, "kernel shift: has no m"),
        ({"N": 3, "X": X}, "kernel shift: has no N, X"),
        ({"n": ...}, "kernel shift: also wants n"),
        ({"x": 3}, "kernel shift: x=3: wanted an array on the device, or None"),
        ({"x": np.int32(3)}, "x=np.int32(3): wanted an array"),
        ({"n": X}, "kernel shift: n=DeviceArray"),
        ({"n": None}, "kernel shift: n=None"),
        ({"n": 2.5}, "kernel shift: n=2.5"),
        ({"n": 1 << 31}, "kernel shift: n=2147483648"),
        ({"size": -1}, "kernel shift: size=-1"),
        ({"eps": X}, "kernel shift: eps=DeviceArray"),
    ],
)
def test_wrong_arguments_are_refused(changed, said):
    given = {name: value for name, value in (GIVEN | changed).items() if value is not ...}
    with pytest.raises(TypeError, match=re.escape(said)):
        read_signature(SHIFT).arguments(**given)


def test_a_doubled_argument_is_refused():
    with pytest.raises(TypeError, match="multiple values for keyword argument 'n'"):
        read_signature(SHIFT).arguments(**GIVEN, **{"n": 3})


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("static void f(int n) {", "with one kernel, not 0"),
        (SHIFT + "}" + SHIFT, "with one kernel, not 2"),
        (SHIFT.replace("double magnitude", "half magnitude"), "no known form: half magnitude"),
        (SHIFT.replace("is_last = 0", "is_last = LAST"), "no known form: int is_last = LAST"),
        (SHIFT.replace("unsigned size", "unsigned n"), "two parameters of one name"),
    ],
)
def test_a_source_that_is_not_understood_is_refused(source, said):
    with pytest.raises(ValueError, match=said):
        read_signature(source)


@pytest.mark.parametrize("name", sorted({kernel.name for kernel in KERNELS}))
def test_every_kernel_is_read(name):
    signature = Kernel(name).signature
    assert signature.name == name
    assert signature.parameters == read_signature(Kernel(name).source).parameters != ()


def test_the_order_of_a_signature_is_the_kernels_own(emulated, monkeypatch):
    """Two parameters of one type change their places in the source, and nothing else does."""
    x, rows = np.arange(24, dtype=np.float32).reshape(4, 6), np.array([2, 0], np.int32)
    swapped, text = {"x_begin": "y_begin", "y_begin": "x_begin"}, compiling._text
    declared = re.compile(r"int (x_begin|y_begin)\b")

    def planted(file):
        return declared.sub(lambda found: f"int {swapped[found[1]]}", text(file))

    def copied():
        y = emulated.upload(np.zeros((2, 9), np.float32))
        source = emulated.upload(x)
        start(emulated, [copy_rows(source, y, 2, rows=emulated.upload(rows), to_row=0, to=3)])
        return emulated.download(y, 2)

    wanted = np.zeros((2, 9), np.float32)
    wanted[:, 3:] = x[rows]
    assert np.array_equal(copied(), wanted)
    before = Kernel("copy").signature
    monkeypatch.setattr(emulated, "loaded", {})
    monkeypatch.setattr(compiling, "_text", planted)
    assert Kernel("copy").signature.parameters != before.parameters
    assert np.array_equal(copied(), wanted)
