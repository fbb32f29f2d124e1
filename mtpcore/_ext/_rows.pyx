"""The rows of ordinary batches: read, checked, placed and sorted by sequence in one pass."""

import numpy as np

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongAndOverflow, PyLong_CheckExact
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t

from mtpcore._ext._buffers cimport bools, bools_of, int32s, int32s_of


cdef bint is_int32(object number, int64_t least, int32_t *found) except *:
    """Read a plain int that fits; say whether it is one."""
    cdef int overflow = 0
    cdef long value
    if not PyLong_CheckExact(number):
        return False
    value = PyLong_AsLongAndOverflow(number, &overflow)
    found[0] = <int32_t> value
    return overflow == 0 and least <= value <= INT32_MAX


def list_as_int32(list values not None):
    cdef int64_t n = PyList_GET_SIZE(values), i
    cdef int32_t *out
    if n == 0:
        return None
    found = np.empty(n, np.int32)
    out = int32s_of(found, 1).data
    if PyList_GET_SIZE(values) != n:  # to make an array can run what collects garbage
        return None
    for i in range(n):
        if not is_int32(<object> PyList_GET_ITEM(values, i), INT32_MIN, &out[i]):
            return None
    return found


def columns_of_chain(tokens, seq, pos, outputs):
    cdef int32_t whose = 0, begin = 0
    cdef int32_t *seqs
    cdef int32_t *places
    cdef unsigned char *wanted
    cdef int64_t n, i
    cdef bint all_wanted
    if type(tokens) is not list or type(outputs) is not str:
        return None
    if not (is_int32(seq, 0, &whose) and is_int32(pos, 0, &begin)):
        return None
    if outputs not in ("all", "last", "none"):
        return None
    ids = list_as_int32(tokens)
    if ids is None:
        return None
    n = int32s_of(ids, 1).n
    if begin + n > INT32_MAX:
        return None
    columns = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.bool_)
    seqs, places = int32s_of(columns[0], 1).data, int32s_of(columns[1], 1).data
    wanted, all_wanted = bools_of(columns[2]).data, outputs == "all"
    for i in range(n):
        seqs[i], places[i], wanted[i] = whose, <int32_t> (begin + i), all_wanted
    wanted[n - 1] = outputs != "none"
    return ids, *columns


def place_rows(
    tokens, seq, pos, outputs, list lengths not None, int64_t n_vocab, int64_t n_ctx,
    bint begins_anywhere,
):
    cdef int32s ids = int32s_of(tokens, 1), seqs = int32s_of(seq, 1), positions = int32s_of(pos, 1)
    cdef bools asked = bools_of(outputs)
    cdef int64_t n = ids.n, n_seq = len(lengths), begin = 0, end, place, s, length
    cdef int64_t n_outputs = 0
    cdef int32_t *placed
    cdef int32_t *wanted
    cdef dict ranges = {}, runs = {}
    if seqs.n != n or positions.n != n or asked.n != n:
        return None
    places, chosen = np.empty(n, np.int32), np.empty(n, np.int32)
    placed, wanted = int32s_of(places, 1).data, int32s_of(chosen, 1).data
    while begin < n:
        s = seqs.data[begin]
        if not 0 <= s < n_seq:
            return None
        if s in ranges:
            first, place = ranges[s]
        else:
            length = lengths[s]
            place = positions.data[begin] if begins_anywhere and length == 0 else length
            first = place
        end = begin
        while end < n and seqs.data[end] == s:
            if not (0 <= ids.data[end] < n_vocab and positions.data[end] == place
                    and 0 <= place < n_ctx):
                return None
            placed[end] = place
            if asked.data[end]:
                wanted[n_outputs] = end
                n_outputs += 1
            place += 1
            end += 1
        ranges[s] = first, place
        runs.setdefault(s, []).append(np.arange(begin, end))
        begin = end
    groups = {s: mine[0] if len(mine) == 1 else np.concatenate(mine) for s, mine in runs.items()}
    return places, ranges, groups, chosen[:n_outputs]
