"""States of recurrent layers as kernels store them, settled: after the rows of their log."""

import numpy as np

from libc.stdint cimport int32_t, int64_t

from mtpcore._ext._buffers cimport floats, floats_of, int32s, int32s_of

from mtpcore.errors import BackendError


cdef extern from "recurrent/settle.h" nogil:
    ctypedef struct mtp_delta:
        int64_t n_heads
        int64_t n_key_heads
        int64_t k_width
        int64_t v_width
        int is_tiled
        int by_channel
        int corrects

    int64_t mtp_delta_base(const mtp_delta *d)
    int64_t mtp_delta_logged(const mtp_delta *d)
    void mtp_delta_settle(const mtp_delta *d, const float *base, const float *log,
                          const int32_t *rows, int64_t n_rows, float *scratch, float *to)


cdef mtp_delta shape_of(layer) except *:
    sizes = layer.n_heads, layer.n_key_heads, layer.k_width, layer.v_width
    if min(sizes) < 1 or layer.n_heads % layer.n_key_heads:
        raise BackendError("no shape of a delta rule", got=sizes,
                           wanted="heads that share key heads evenly, and widths of 1 at least")
    return mtp_delta(layer.n_heads, layer.n_key_heads, layer.k_width, layer.v_width,
                     layer.key_heads == "tiled", layer.by_channel, layer.corrects)


def delta_sizes(layer):
    cdef mtp_delta shape = shape_of(layer)
    return mtp_delta_base(&shape), mtp_delta_logged(&shape)


def settle_delta(layer, base, log, rows):
    cdef mtp_delta shape = shape_of(layer)
    cdef floats begin = floats_of(base, False), logged = floats_of(log, False)
    cdef int32s chosen = int32s_of(rows, 1)
    cdef int64_t n_logged = mtp_delta_logged(&shape), i
    if begin.n != mtp_delta_base(&shape):
        raise BackendError("not a base of this layer", wanted=mtp_delta_base(&shape), got=begin.n)
    for i in range(chosen.n):
        if not 0 <= chosen.data[i] < logged.n // n_logged:
            raise BackendError("no such row of a log", got=chosen.data[i])
    scratch = np.empty(17 * shape.k_width + 16, np.float32)
    found = np.empty((shape.n_heads, shape.k_width, shape.v_width), np.float32)
    cdef floats working = floats_of(scratch, True), to = floats_of(found, True)
    with nogil:
        mtp_delta_settle(&shape, begin.data, logged.data, chosen.data, chosen.n, working.data,
                         to.data)
    return found
