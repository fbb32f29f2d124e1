"""Values as blocks of a weight type."""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t

from mtpcore._ext._buffers cimport floats, floats_of, memory, memory_of

cdef extern from "matmul/weight_types.h" nogil:
    int64_t mtp_type_block(int32_t type)
    int64_t mtp_row_bytes(int32_t type, int64_t n_cols)

cdef extern from "encode/encode.h" nogil:
    int mtp_encodes(int32_t type)
    void mtp_encode(int32_t type, int64_t n_rows, int64_t n_cols, const float *x,
                    const float *importance, uint8_t *blocks)


def encodes(int32_t type):
    return bool(mtp_encodes(type))


def encode(values, int32_t type, importance=None):
    cdef int64_t n_rows, n_cols
    cdef floats x, weights = floats(NULL, 0)
    cdef memory blocks
    if not mtp_encodes(type):
        raise ValueError("a type that is not encoded")
    n_rows, n_cols = values.shape
    x = floats_of(values, False)
    if n_cols % mtp_type_block(type) or x.n != n_rows * n_cols:
        raise ValueError("rows that are not whole blocks")
    if importance is not None:
        weights = floats_of(importance, False)
        if weights.n != n_cols:
            raise ValueError("another number of weights than of columns")
    out = np.empty((n_rows, mtp_row_bytes(type, n_cols)), np.uint8)
    blocks = memory_of(out)
    with nogil:
        mtp_encode(type, n_rows, n_cols, x.data, weights.data, <uint8_t *> blocks.data)
    return out
