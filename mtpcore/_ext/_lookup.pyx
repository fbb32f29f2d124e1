"""An index of a text, in which its last tokens are looked up."""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint64_t
from libc.string cimport memset

from mtpcore._ext._buffers cimport int32s, int32s_of


cdef extern from "lookup/text_index.h" nogil:
    enum:
        MTP_MOST_ORDERS
        MTP_MOST_PLACES
    ctypedef struct mtp_text_index:
        int32_t *tokens
        int64_t n
        int64_t capacity
        int32_t orders[MTP_MOST_ORDERS]
        int32_t n_orders
        uint64_t seed
    ctypedef struct mtp_text_match:
        int64_t begin
        int32_t length
        int32_t places
        int32_t agreeing
    int mtp_text_index_follow(mtp_text_index *index, const int32_t *tokens, int64_t n)
    void mtp_text_index_free(mtp_text_index *index)
    mtp_text_match mtp_text_index_find(
        const mtp_text_index *index, const int32_t *tokens, int64_t n, int32_t longest
    )

MOST_ORDERS = MTP_MOST_ORDERS
MOST_PLACES = MTP_MOST_PLACES


cdef class TextIndex:
    cdef mtp_text_index index

    def __cinit__(self, orders, uint64_t seed):
        cdef int32_t order, last = 0
        memset(&self.index, 0, sizeof(self.index))
        if not 0 < len(orders) <= MTP_MOST_ORDERS:
            raise ValueError(f"1 to {MTP_MOST_ORDERS} orders")
        self.index.seed = seed
        for order in orders:
            if order <= last:
                raise ValueError("orders ascend, from 1")
            self.index.orders[self.index.n_orders] = last = order
            self.index.n_orders += 1

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

    def find(self, tokens, int64_t k, int32_t longest):
        cdef int32s text = int32s_of(tokens, 1)
        cdef mtp_text_match best = mtp_text_index_find(&self.index, text.data, text.n, longest)
        cdef int64_t at = best.begin
        cdef list draft = []
        while best.length and len(draft) < k and self.index.tokens[at] >= 0:
            draft.append(self.index.tokens[at])
            at += 1
            if at == self.index.n:  # what would be copied now is the draft itself: it repeats
                at = best.begin
        return draft, best.length, best.places, best.agreeing
