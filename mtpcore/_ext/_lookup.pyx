"""Texts in which the last tokens of another, or their own, are looked up.

The interpreter's lock is held throughout: a call is short, and no other one comes between.
"""

import numpy as np

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint64_t
from libc.string cimport memset

from mtpcore._ext._buffers cimport int32s, int32s_of


cdef extern from "lookup/match.h" nogil:
    enum:
        MTP_MOST_ORDERS
        MTP_MOST_PLACES
    ctypedef struct mtp_text_match:
        int64_t begin
        int32_t length
        int32_t places
        int32_t agreeing

cdef extern from "lookup/text_index.h" nogil:
    ctypedef struct mtp_text_index:
        int32_t *tokens
        int64_t n
        int64_t capacity
        int32_t orders[MTP_MOST_ORDERS]
        int32_t n_orders
        uint64_t seed
    int mtp_text_index_follow(mtp_text_index *index, const int32_t *tokens, int64_t n)
    int mtp_text_index_append(mtp_text_index *index, const int32_t *tokens, int64_t n)
    int64_t mtp_text_index_shared(const mtp_text_index *index, const int32_t *tokens, int64_t n)
    void mtp_text_index_free(mtp_text_index *index)
    mtp_text_match mtp_text_index_find(
        const mtp_text_index *index, const int32_t *tokens, int64_t n, int32_t longest
    )

cdef extern from "lookup/sorted_text.h" nogil:
    ctypedef struct mtp_sorted_text:
        const int32_t *tokens
        const int32_t *places
        int64_t n
    mtp_text_match mtp_sorted_text_find(
        const mtp_sorted_text *text, const int32_t *tokens, int64_t n, const int32_t *orders,
        int32_t n_orders, int32_t longest
    )

MOST_ORDERS = MTP_MOST_ORDERS
MOST_PLACES = MTP_MOST_PLACES


cdef int32_t read_orders(orders, int32_t *found) except -1:
    """Write orders, which ascend; return how many there are."""
    cdef int32_t n = 0, order, last = 0
    if not 0 < len(orders) <= MTP_MOST_ORDERS:
        raise ValueError(f"1 to {MTP_MOST_ORDERS} orders")
    for order in orders:
        if order <= last:
            raise ValueError("orders ascend, from 1")
        found[n] = last = order
        n += 1
    return n


cdef tuple as_tuple(mtp_text_match best, const int32_t *text, int64_t n, int64_t k, bint repeats):
    """Return what follows a match, up to k tokens; and what else is known of it."""
    cdef int64_t at = best.begin
    cdef list draft = []
    while best.length and len(draft) < k and at < n and text[at] >= 0:
        draft.append(text[at])
        at += 1
        if at == n and repeats:
            at = best.begin
    return draft, best.length, best.places, best.agreeing


cdef class TextIndex:
    cdef mtp_text_index index

    def __cinit__(self, orders, uint64_t seed):
        memset(&self.index, 0, sizeof(self.index))
        self.index.n_orders = read_orders(orders, self.index.orders)
        self.index.seed = seed

    def __dealloc__(self):
        mtp_text_index_free(&self.index)

    def __len__(self):
        return self.index.n

    def follow(self, tokens):
        cdef int32s text = int32s_of(tokens, 1)
        if text.n > INT32_MAX // 2:
            raise OverflowError("a text is too long")
        if mtp_text_index_follow(&self.index, text.data, text.n):
            raise MemoryError

    def append(self, tokens):
        cdef int32s text = int32s_of(tokens, 1)
        if text.n > INT32_MAX // 2 - self.index.n:
            raise OverflowError("a text is too long")
        if mtp_text_index_append(&self.index, text.data, text.n):
            raise MemoryError

    def shared(self, tokens):
        cdef int32s text = int32s_of(tokens, 1)
        return mtp_text_index_shared(&self.index, text.data, text.n)

    def tokens(self, int64_t begin):
        if not 0 <= begin <= self.index.n:
            raise IndexError(f"tokens from {begin} of {self.index.n}")
        cdef int64_t i, n = self.index.n - begin
        found = np.empty(n, np.int32)
        cdef int32_t *out = int32s_of(found, 1).data
        for i in range(n):
            out[i] = self.index.tokens[begin + i]
        return found

    def find(self, tokens, int64_t k, int32_t longest, bint repeats=True):
        cdef int32s text = int32s_of(tokens, 1)
        cdef mtp_text_match best = mtp_text_index_find(&self.index, text.data, text.n, longest)
        return as_tuple(best, self.index.tokens, self.index.n, k, repeats)


def find_in_sorted(text, places, tokens, orders, int64_t k, int32_t longest):
    cdef int32s held = int32s_of(text, 1), order = int32s_of(places, 1), last = int32s_of(tokens, 1)
    cdef int32_t wanted[MTP_MOST_ORDERS]
    cdef int32_t n_orders = read_orders(orders, wanted)
    if held.n != order.n:
        raise IndexError("not one place a token")
    cdef mtp_sorted_text whole = mtp_sorted_text(held.data, order.data, held.n)
    cdef mtp_text_match best = mtp_sorted_text_find(
        &whole, last.data, last.n, wanted, n_orders, longest
    )
    return as_tuple(best, held.data, held.n, k, False)
