"""Multiply-adds of arrays, each rounded once."""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_FULL_RO, PyBUF_WRITABLE, PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc.stdint cimport int64_t


cdef extern from "<math.h>" nogil:
    float fmaf(float a, float b, float c)


cdef enum:
    MOST_AXES = 16


cdef struct operand:
    char *at
    int64_t strides[MOST_AXES]  # bytes, along the axes of the result


cdef int read(array, operand *found, Py_buffer *result) except -1:
    """Find the values of an array as one of the result's shape, with strides of 0 where it has one.

    They stay where they are as long as the caller holds the array.
    """
    cdef Py_buffer own
    cdef int axis, to, ahead
    PyObject_GetBuffer(array, &own, PyBUF_FULL_RO)
    try:
        if own.itemsize != 4 or own.format == NULL or own.format[0] != b"f":
            raise TypeError("values are no float32")
        ahead = result.ndim - own.ndim
        if ahead < 0:
            raise IndexError("more axes than the result has")
        found.at = <char *> own.buf
        for to in range(result.ndim):
            axis = to - ahead
            if axis < 0 or own.shape[axis] == 1:
                found.strides[to] = 0
            elif own.shape[axis] == result.shape[to]:
                found.strides[to] = own.strides[axis]
            else:
                raise IndexError("another shape than the result's")
    finally:
        PyBuffer_Release(&own)
    return 0


cdef void multiply_add(operand *a, operand *b, operand *c, Py_buffer *result) noexcept nogil:
    """Write all values, one row along the last axis after the other."""
    cdef int64_t at[MOST_AXES]
    cdef int axis, last = result.ndim - 1
    cdef int64_t n = result.shape[last] if last >= 0 else 1, i
    cdef int64_t n_rows = result.len // 4 // n if n > 0 else 0
    cdef int64_t of_a = a.strides[last] if last >= 0 else 0
    cdef int64_t of_b = b.strides[last] if last >= 0 else 0
    cdef int64_t of_c = c.strides[last] if last >= 0 else 0
    cdef char *x = a.at
    cdef char *y = b.at
    cdef char *z = c.at
    cdef float *out = <float *> result.buf
    for axis in range(last):
        at[axis] = 0
    while n_rows > 0:
        for i in range(n):
            out[i] = fmaf((<float *> (x + i * of_a))[0], (<float *> (y + i * of_b))[0],
                          (<float *> (z + i * of_c))[0])
        out += n
        n_rows -= 1
        for axis in range(last - 1, -1, -1):
            at[axis] += 1
            x += a.strides[axis]
            y += b.strides[axis]
            z += c.strides[axis]
            if at[axis] < result.shape[axis]:
                break
            x -= at[axis] * a.strides[axis]
            y -= at[axis] * b.strides[axis]
            z -= at[axis] * c.strides[axis]
            at[axis] = 0


def fma(a, b, c, result):
    cdef Py_buffer made
    cdef operand[3] of
    PyObject_GetBuffer(result, &made, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE)
    try:
        if made.ndim > MOST_AXES or made.itemsize != 4 or made.format[0] != b"f":
            raise TypeError("the result is no array of float32 with at most 16 axes")
        read(a, &of[0], &made)
        read(b, &of[1], &made)
        read(c, &of[2], &made)
        with nogil:
            multiply_add(&of[0], &of[1], &of[2], &made)
    finally:
        PyBuffer_Release(&made)
