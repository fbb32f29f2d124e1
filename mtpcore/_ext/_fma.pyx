"""Multiply-adds of arrays, each rounded once."""

from libc.stdint cimport int64_t


cdef extern from "<math.h>" nogil:
    float fmaf(float a, float b, float c)


def fma(
    const float[:] a not None, const float[:] b not None, const float[:] c not None,
    float[:] result not None,
):
    cdef int64_t n = result.shape[0], i
    if not (a.shape[0] == b.shape[0] == c.shape[0] == n):
        raise IndexError("arrays of different lengths")
    with nogil:
        for i in range(n):
            result[i] = fmaf(a[i], b[i], c[i])
