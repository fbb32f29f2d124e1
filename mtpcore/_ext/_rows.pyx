"""The rows of ordinary batches: read, checked, placed and sorted by sequence in one pass."""

import numpy as np

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongAndOverflow, PyLong_CheckExact
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t


def list_as_int32(list values not None):
    cdef int64_t n = PyList_GET_SIZE(values), i
    cdef long number
    cdef int overflow = 0
    cdef object item
    cdef int32_t[::1] out
    if n == 0:
        return None
    found = np.empty(n, np.int32)
    out = found
    for i in range(n):
        item = <object> PyList_GET_ITEM(values, i)
        if not PyLong_CheckExact(item):
            return None
        number = PyLong_AsLongAndOverflow(item, &overflow)
        if overflow or not INT32_MIN <= number <= INT32_MAX:
            return None
        out[i] = <int32_t> number
    return found


def place_rows(
    const int32_t[::1] tokens not None,
    const int32_t[::1] seq not None,
    const int32_t[::1] pos not None,
    const unsigned char[::1] outputs not None,
    list lengths not None,
    int64_t n_vocab,
    int64_t n_ctx,
    bint begins_anywhere,
):
    cdef int64_t n = tokens.shape[0], n_seq = len(lengths), begin = 0, end, row, place, s, length
    cdef int64_t n_outputs = 0
    cdef int32_t[::1] placed, wanted
    cdef dict ranges = {}, runs = {}
    places = np.empty(n, np.int32)
    placed = places
    while begin < n:
        s = seq[begin]
        if not 0 <= s < n_seq:
            return None
        if s in ranges:
            first, place = ranges[s]
        else:
            length = lengths[s]
            place = pos[begin] if begins_anywhere and length == 0 else length
            first = place
        end = begin
        while end < n and seq[end] == s:
            if not 0 <= tokens[end] < n_vocab or pos[end] != place or not 0 <= place < n_ctx:
                return None
            placed[end] = place
            n_outputs += outputs[end] != 0
            place += 1
            end += 1
        ranges[s] = first, place
        runs.setdefault(s, []).append(np.arange(begin, end))
        begin = end
    chosen = np.empty(n_outputs, np.int32)
    wanted = chosen
    n_outputs = 0
    for row in range(n):
        if outputs[row]:
            wanted[n_outputs] = row
            n_outputs += 1
    groups = {s: mine[0] if len(mine) == 1 else np.concatenate(mine) for s, mine in runs.items()}
    return places, ranges, groups, chosen
