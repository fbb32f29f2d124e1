"""Rows of other libraries: taken where they are, brought home, or refused."""

import numpy as np
import pytest
from harness.foreign import GPU, Foreign, rows

from mtpcore import Batch
from mtpcore.boundary.arrays import integers, numbers, rows_of
from mtpcore.boundary.dlpack import ForeignRows
from mtpcore.errors import BatchError


def test_rows_on_a_device_stay_there():
    values = rows(4, 3)
    source = Foreign(values)
    found = rows_of(source, "rows")
    assert isinstance(found, ForeignRows)
    assert (found.shape, found.ndim, len(found), found.dtype) == ((4, 3), 2, 4, np.float32)
    assert found.device == GPU
    assert source.asked == [{"stream": None, "max_version": (1, 0)}]
    taken = found.take(7)
    assert source.asked[-1]["stream"] == 7
    assert taken.address == values.ctypes.data


@pytest.mark.parametrize("kind", [1, 3, 13])
def test_memory_that_the_host_reads_is_read(kind):
    values = rows(4, 3)
    found = rows_of(Foreign(values, (kind, 0)), "rows")
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, values)


def test_a_library_before_dlpack_1_is_asked_again():
    found = rows_of(Foreign(rows(2, 3), old=True), "rows")
    assert found.shape == (2, 3)
    assert found.take(1).shape == (2, 3)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (rows(4, 3).astype(np.float64), "rows on a device are float32; got type 2 of 64 bits"),
        (rows(4, 3).astype(np.int32), "rows on a device are float32"),
        (rows(4, 6)[:, ::2], "rows on a device are C-contiguous"),
        (rows(4, 6).T, "rows on a device are C-contiguous"),
    ],
)
def test_what_a_device_would_have_to_convert_is_refused(values, said):
    with pytest.raises(BatchError, match=said) as caught:
        rows_of(Foreign(values), "rows")
    assert "torch" in caught.value.fix


@pytest.mark.parametrize("shape", [(0, 3), (1, 5), (5, 1), (3, 1, 2)])
def test_axes_of_one_or_no_row_have_any_stride(shape):
    values = np.lib.stride_tricks.as_strided(
        rows(8, 8),
        shape,
        [
            4 * 6 if n == 1 else s
            for n, s in zip(shape, np.empty(shape, np.float32).strides, strict=True)
        ],
    )
    assert rows_of(Foreign(values), "rows").shape == shape


def test_rows_come_home_where_their_library_brings_them():
    values = rows(4, 3)
    assert np.array_equal(rows_of(Foreign(values), "rows"), values)
    assert np.array_equal(numbers(Foreign(values), "rows"), values)
    assert numbers(Foreign(values.astype(np.float16)), "rows").dtype == np.float32
    codes = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert np.array_equal(integers(Foreign(codes), "codes"), codes)


def test_or_the_error_says_how_to():
    stuck = Foreign(rows(4, 3), brings=False)
    with pytest.raises(BatchError, match="their library does not bring them") as caught:
        np.asarray(rows_of(stuck, "rows"))
    assert ".cpu()" in caught.value.fix
    with pytest.raises(BatchError, match="no array of numbers") as caught:
        numbers(stuck, "rows")
    assert ".cpu()" in caught.value.fix


def test_rows_that_went_to_another_device_are_not_read():
    """Their address would be one of the device that they left."""
    source = Foreign(rows(4, 3))
    found = rows_of(source, "rows")
    source.device = (GPU[0], GPU[1] + 1)
    with pytest.raises(BatchError, match="another device than before"):
        found.take(1)


def test_rows_that_changed_their_shape_are_not_read():
    source = Foreign(rows(4, 3))
    found = rows_of(source, "rows")
    source.values = rows(2, 3)
    for read in (lambda: found.take(1), lambda: np.asarray(found)):
        with pytest.raises(BatchError, match="another shape than before"):
            read()


@pytest.mark.parametrize("broken", [None, 5, (), ("x", 0), (2,), (2, 0)])
def test_whatever_an_object_answers_becomes_an_error_of_ours(broken):
    class Broken:
        def __dlpack_device__(self):
            return broken

        def __dlpack__(self, **options):
            return object()

    with pytest.raises(BatchError, match="rows are no array of numbers"):
        rows_of(Broken(), "rows")


def test_a_batch_is_checked_as_far_as_the_host_can_see():
    batch = Batch(embeddings=Foreign(rows(3, 4)), slots={"a": Foreign(rows(3, 2))})
    assert len(batch) == 3
    with pytest.raises(BatchError, match="embedding rows have two axes"):
        Batch(embeddings=Foreign(rows(3, 4).reshape(3, 2, 2)))
    with pytest.raises(BatchError, match="slot rows do not fit the batch"):
        Batch([1, 2], slots={"a": Foreign(rows(3, 2))})
    with pytest.raises(BatchError, match="one embedding row a token"):
        Batch([1, -1], embeddings=Foreign(rows(3, 2)))
