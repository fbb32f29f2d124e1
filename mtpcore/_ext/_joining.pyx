"""Joining the pieces of a text, as byte-pair encoding does: the best pair first."""

from cpython.list cimport PyList_GET_SIZE
from cpython.unicode cimport PyUnicode_Concat
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

cdef enum:
    KNOWN_BITS = 16  # of the number of pairs that are remembered

cdef int32_t JOINED = -1  # in place of a piece that is part of the one before it


cdef struct Joint:
    double rank
    int32_t left  # the place of its left piece
    int32_t piece


cdef struct Known:
    uint64_t pair  # 0: none
    double rank
    int32_t piece  # -1: none


cdef inline bint comes_before(const Joint *one, const Joint *other) noexcept nogil:
    return one.rank < other.rank or (one.rank == other.rank and one.left < other.left)


cdef void sift_up(Joint *heap, int64_t at) noexcept nogil:
    cdef Joint joint = heap[at]
    cdef int64_t above
    while at > 0:
        above = (at - 1) // 2
        if not comes_before(&joint, &heap[above]):
            break
        heap[at] = heap[above]
        at = above
    heap[at] = joint


cdef void sift_down(Joint *heap, int64_t n) noexcept nogil:
    cdef Joint joint = heap[0]
    cdef int64_t at = 0, below
    while True:
        below = 2 * at + 1
        if below >= n:
            break
        if below + 1 < n and comes_before(&heap[below + 1], &heap[below]):
            below += 1
        if not comes_before(&heap[below], &joint):
            break
        heap[at] = heap[below]
        at = below
    heap[at] = joint


cdef class Joiner:
    cdef list texts
    cdef dict ids, ranks
    cdef const unsigned char[::1] joinable
    cdef const double[::1] scores
    cdef bint has_scores, whole_words
    cdef int64_t n
    cdef Known *known  # what pairs make that texts repeat; one may take another's place
    cdef readonly str missed  # the last pair that has a rank and makes no token

    def __cinit__(self):
        self.known = <Known *> calloc(1 << KNOWN_BITS, sizeof(Known))
        if self.known == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.known)

    def __init__(
        self, list texts not None, dict ids not None, const unsigned char[::1] joinable not None,
        const double[::1] scores=None, dict ranks=None, bint whole_words=False,
    ):
        self.texts, self.ids, self.joinable, self.ranks = texts, ids, joinable, ranks
        self.scores, self.has_scores, self.whole_words = scores, scores is not None, whole_words
        self.n = PyList_GET_SIZE(texts)
        if self.n > INT32_MAX:
            raise OverflowError("more tokens than an id may name")
        if joinable.shape[0] != self.n or (self.has_scores and scores.shape[0] != self.n):
            raise IndexError("not one entry a token")
        if self.has_scores == (ranks is not None):
            raise ValueError("scores or ranks")

    cdef int32_t find(self, str text) except -2:
        """Return the token of a joint text; -1 where none is made of others."""
        cdef object found = self.ids.get(text)
        cdef int64_t token
        if found is None:
            return -1
        token = found
        if not 0 <= token < self.n:
            raise IndexError(f"token {token} of {self.n}")
        return <int32_t> token if self.joinable[token] else -1

    cdef Known *find_pair(self, int32_t left, int32_t right) except NULL:
        """Return what two pieces make."""
        cdef uint64_t pair = <uint64_t> left * <uint64_t> self.n + <uint64_t> right + 1
        cdef Known *known = &self.known[(pair * <uint64_t> 0x9E3779B97F4A7C15) >> (64 - KNOWN_BITS)]
        if known.pair != pair:
            known.pair = 0  # until all of it is known
            known.piece = -1
            if self.joinable[left] and self.joinable[right]:
                self.look_up(known, self.texts[left], self.texts[right])
            known.pair = pair
        return known

    cdef int look_up(self, Known *known, str left, str right) except -1:
        """Set the piece that two texts make, and its rank."""
        cdef str pair
        if self.has_scores:
            known.piece = self.find(PyUnicode_Concat(left, right))
            if known.piece >= 0:
                known.rank = -self.scores[known.piece]
            return 0
        pair = PyUnicode_Concat(PyUnicode_Concat(left, " "), right)
        rank = self.ranks.get(pair)
        if rank is not None:
            known.rank = rank
            known.piece = self.find(PyUnicode_Concat(left, right))
            if known.piece < 0:
                self.missed = pair
        return 0

    cdef int32_t join_word(self, int32_t *pieces, int32_t n) except -1:
        """Join the pieces of one word in their place; return how many are left."""
        cdef int32_t *before = <int32_t *> malloc(2 * <size_t> n * sizeof(int32_t))
        cdef int32_t *after = before + n
        cdef Joint *heap = <Joint *> malloc(3 * <size_t> n * sizeof(Joint))
        cdef Joint joint
        cdef Known *known
        cdef int64_t n_heap = 0
        cdef int32_t i, side, left, right
        try:
            if before == NULL or heap == NULL:
                raise MemoryError
            for i in range(n):
                before[i], after[i] = i - 1, i + 1
            for i in range(n - 1):
                known = self.find_pair(pieces[i], pieces[i + 1])
                if known.piece >= 0:
                    heap[n_heap] = Joint(known.rank, i, known.piece)
                    sift_up(heap, n_heap)
                    n_heap += 1
            while n_heap > 0:
                joint, n_heap = heap[0], n_heap - 1
                heap[0] = heap[n_heap]
                sift_down(heap, n_heap)
                left = joint.left
                right = after[left]
                if pieces[left] == JOINED or right >= n:
                    continue
                known = self.find_pair(pieces[left], pieces[right])
                if known.piece != joint.piece or known.rank != joint.rank:
                    continue  # one of them has grown
                pieces[left], pieces[right] = joint.piece, JOINED
                after[left] = after[right]
                if after[left] < n:
                    before[after[left]] = left
                for side in range(2):
                    i = before[left] if side == 0 else left
                    if i < 0 or after[i] >= n:
                        continue
                    known = self.find_pair(pieces[i], pieces[after[i]])
                    if known.piece >= 0:
                        heap[n_heap] = Joint(known.rank, i, known.piece)
                        sift_up(heap, n_heap)
                        n_heap += 1
            left = 0
            for i in range(n):
                if pieces[i] != JOINED:
                    pieces[left] = pieces[i]
                    left += 1
            return left
        finally:
            free(before)
            free(heap)

    def join(self, list pieces not None, list words not None):
        cdef int64_t n = PyList_GET_SIZE(pieces), i, begin = 0, end, token
        cdef int32_t n_left, whole
        cdef int32_t *found
        cdef list joined = []
        if PyList_GET_SIZE(words) != n:
            raise IndexError("not one word a piece")
        if n > INT32_MAX:
            raise OverflowError("more letters than a text may have")
        found = <int32_t *> malloc(<size_t> (n + 1) * sizeof(int32_t))
        if found == NULL:
            raise MemoryError
        try:
            for i in range(n):
                token = pieces[i]
                if not 0 <= token < self.n:
                    raise IndexError(f"token {token} of {self.n}")
                found[i] = <int32_t> token
            while begin < n:
                end = begin + 1
                while end < n and words[end] == words[begin]:
                    end += 1
                n_left = <int32_t> (end - begin)
                if n_left > 1:
                    whole = -1
                    if self.whole_words:
                        letters = [self.texts[found[i]] for i in range(begin, end)]
                        whole = self.find("".join(letters))
                    if whole >= 0:
                        found[begin], n_left = whole, 1
                    else:
                        n_left = self.join_word(found + begin, n_left)
                for i in range(begin, begin + n_left):
                    joined.append(found[i])
                begin = end
            return joined
        finally:
            free(found)
