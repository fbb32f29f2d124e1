"""States of recurrent layers as kernels store them, settled: after the rows of their log."""

import numpy as np

from libc.stdint cimport int32_t, int64_t

from mtpcore._ext._buffers cimport floats, floats_of, int32s, int32s_of

from mtpcore.errors import BackendError


cdef extern from "recurrent/settle.h" nogil:
    int DECAY_BY_HEAD, DECAY_BY_CHANNEL, DECAY_BY_COLUMN
    ctypedef struct mtp_delta:
        int64_t n_heads
        int64_t n_key_heads
        int64_t k_width
        int64_t v_width
        int is_tiled
        int decays
        int corrects
        const float *rates

    int64_t mtp_delta_base(const mtp_delta *d)
    int64_t mtp_delta_logged(const mtp_delta *d)
    void mtp_delta_settle(const mtp_delta *d, const float *base, const float *log,
                          const int32_t *rows, int64_t n_rows, float *scratch, float *to)


cdef mtp_delta shape_of(layer) except *:
    sizes = layer.n_heads, layer.n_key_heads, layer.k_width, layer.v_width
    if min(sizes) < 1 or layer.n_heads % layer.n_key_heads:
        raise BackendError("no shape of a delta rule", got=sizes,
                           wanted="heads that share key heads evenly, and widths of 1 at least")
    cdef int decays = DECAY_BY_CHANNEL if layer.by_channel else DECAY_BY_HEAD
    if layer.rates is not None:
        decays = DECAY_BY_COLUMN
    return mtp_delta(layer.n_heads, layer.n_key_heads, layer.k_width, layer.v_width,
                     layer.key_heads == "tiled", decays, layer.corrects, NULL)


def delta_sizes(layer):
    cdef mtp_delta shape = shape_of(layer)
    return mtp_delta_base(&shape), mtp_delta_logged(&shape)


def settle_delta(layer, base, log, rows, rates=None):
    cdef mtp_delta shape = shape_of(layer)
    cdef floats begin = floats_of(base, False), logged = floats_of(log, False)
    cdef floats given
    cdef int32s chosen = int32s_of(rows, 1)
    cdef int64_t n_logged = mtp_delta_logged(&shape), i
    if begin.n != mtp_delta_base(&shape):
        raise BackendError("not a base of this layer", wanted=mtp_delta_base(&shape), got=begin.n)
    if shape.decays == DECAY_BY_COLUMN:
        given = floats_of(rates, False)
        if given.n != begin.n:
            raise BackendError("not a rate for each value of a base", wanted=begin.n, got=given.n)
        shape.rates = given.data
    for i in range(chosen.n):
        if not 0 <= chosen.data[i] < logged.n // n_logged:
            raise BackendError("no such row of a log", got=chosen.data[i])
    scratch = np.empty(32 * shape.k_width, np.float32)
    found = np.empty((shape.n_heads, shape.k_width, shape.v_width), np.float32)
    cdef floats working = floats_of(scratch, True), to = floats_of(found, True)
    with nogil:
        mtp_delta_settle(&shape, begin.data, logged.data, chosen.data, chosen.n, working.data,
                         to.data)
    return found
