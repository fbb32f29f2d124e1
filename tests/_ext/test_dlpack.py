"""Capsules that NumPy takes, and arrays of NumPy that are taken."""

import gc
import sys
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mtpcore._ext._dlpack import Taken, make_capsule

HOST = (1, 0)


class Owner:
    """Hands out an array, and can be seen to go."""

    def __init__(self, array, *, versioned=True, read_only=False):
        self.array, self.versioned, self.read_only = array, versioned, read_only

    def __dlpack_device__(self):
        return HOST

    def __dlpack__(self, **options):
        return make_capsule(
            self,
            self.array.ctypes.data,
            self.array.shape,
            self.array.dtype.kind,
            8 * self.array.dtype.itemsize,
            HOST,
            versioned=self.versioned,
            read_only=self.read_only,
            copied=False,
        )


ANY = arrays.arrays(
    st.sampled_from([np.float32, np.float64, np.int32, np.uint8]),
    arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)


@given(ANY, st.booleans())
def test_what_is_handed_out_is_the_array(array, versioned):
    taken = np.from_dlpack(Owner(array, versioned=versioned))
    assert (taken.dtype, taken.shape) == (array.dtype, array.shape)
    assert np.array_equal(taken, array, equal_nan=array.dtype.kind == "f")
    assert array.size == 0 or np.shares_memory(taken, array)


@given(ANY)
def test_what_is_taken_is_where_it_was(array):
    taken = Taken(array.__dlpack__())
    assert taken.shape == array.shape
    assert array.size == 0 or taken.address == array.ctypes.data
    kinds = {"i": 0, "u": 1, "f": 2}
    wanted = (kinds[array.dtype.kind], 8 * array.dtype.itemsize, 1, HOST)
    assert (taken.code, taken.bits, taken.lanes, taken.device) == wanted


def test_strides_are_counted_in_values():
    array = np.zeros((4, 6), np.float32)[::2, 1:]
    taken = Taken(array.__dlpack__())
    assert (taken.shape, taken.strides) == ((2, 5), (12, 1))
    assert taken.address == array.ctypes.data


@pytest.mark.parametrize("versioned", [True, False])
def test_the_owner_lives_as_long_as_it_is_needed(versioned):
    """Whether the capsule was taken, by NumPy or by us, or by nobody."""
    for take in (np.from_dlpack, lambda owner: Taken(owner.__dlpack__()), Owner.__dlpack__):
        owner = Owner(np.arange(3), versioned=versioned)
        gone = weakref.ref(owner)
        taken = take(owner)
        del owner
        gc.collect()
        assert gone() is not None
        del taken
        gc.collect()
        assert gone() is None


def test_a_capsule_is_taken_once():
    owner = Owner(np.arange(3))
    capsule = owner.__dlpack__()
    kept = Taken(capsule)
    with pytest.raises(BufferError, match="taken before"):
        Taken(capsule)
    count = sys.getrefcount(owner)
    del kept, capsule
    assert sys.getrefcount(owner) == count - 1


@pytest.mark.parametrize("nonsense", [None, 5, "dltensor", object()])
def test_nothing_else_is_taken(nonsense):
    with pytest.raises(BufferError, match="no capsule"):
        Taken(nonsense)


def test_a_capsule_that_goes_while_an_exception_comes_leaves_it():
    def fail():
        capsule = Owner(np.arange(3)).__dlpack__()
        assert capsule
        raise KeyError("kept")

    with pytest.raises(KeyError, match="kept"):
        fail()


@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="older NumPy has no read-only DLPack"
)
def test_only_capsules_of_version_1_say_who_may_write():
    for read_only in (True, False):
        owner = Owner(np.arange(3), read_only=read_only)
        assert np.from_dlpack(owner).flags.writeable is not read_only
