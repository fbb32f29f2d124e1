"""Joining the pieces of a text, as byte-pair encoding does: the best pair first."""

from cpython.list cimport PyList_GET_SIZE
from cpython.unicode cimport PyUnicode_Concat
from libc.math cimport NAN
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

cdef int64_t JOINED = -1  # in place of a piece that is part of the one before it


cdef struct Joint:
    double rank
    int64_t left, right  # places
    int64_t left_piece, right_piece, piece


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
    cdef readonly str missed  # the last pair that has a rank and makes no token

    def __init__(
        self, list texts not None, dict ids not None, const unsigned char[::1] joinable not None,
        const double[::1] scores=None, dict ranks=None, bint whole_words=False,
    ):
        self.texts, self.ids, self.joinable, self.ranks = texts, ids, joinable, ranks
        self.scores, self.has_scores, self.whole_words = scores, scores is not None, whole_words
        self.n = PyList_GET_SIZE(texts)
        if joinable.shape[0] != self.n or (self.has_scores and scores.shape[0] != self.n):
            raise IndexError("not one entry a token")
        if self.has_scores == (ranks is not None):
            raise ValueError("scores or ranks")

    cdef int64_t find(self, str text) except -2:
        """Return the token of a joint text; -1 where none is made of others."""
        cdef object found = self.ids.get(text)
        cdef int64_t token
        if found is None:
            return -1
        token = found
        if not 0 <= token < self.n:
            raise IndexError(f"token {token} of {self.n}")
        return token if self.joinable[token] else -1

    cdef bint offer(self, Joint *joint) except -1:
        """Look up what two neighbours make; say whether they make anything."""
        cdef str left, right, pair
        if not (self.joinable[joint.left_piece] and self.joinable[joint.right_piece]):
            return False
        left, right = self.texts[joint.left_piece], self.texts[joint.right_piece]
        if not self.has_scores:
            pair = PyUnicode_Concat(PyUnicode_Concat(left, " "), right)
            rank = self.ranks.get(pair)
            if rank is None:
                return False
            joint.rank = rank
        joint.piece = self.find(PyUnicode_Concat(left, right))
        if self.has_scores and joint.piece >= 0:
            joint.rank = -self.scores[joint.piece]
        elif joint.piece < 0 and not self.has_scores:
            self.missed = pair
        return joint.piece >= 0

    cdef int64_t join_word(self, int64_t *pieces, int64_t n) except -1:
        """Join the pieces of one word in their place; return how many are left."""
        cdef int64_t *before = <int64_t *> malloc((2 * n + 1) * sizeof(int64_t))
        cdef int64_t *after = before + n
        cdef Joint *heap = <Joint *> malloc((3 * n + 1) * sizeof(Joint))
        cdef Joint joint
        cdef int64_t n_heap = 0, i, side, left, right
        try:
            if before == NULL or heap == NULL:
                raise MemoryError
            for i in range(n):
                before[i], after[i] = i - 1, i + 1
            for i in range(n - 1):
                joint = Joint(NAN, i, i + 1, pieces[i], pieces[i + 1], 0)
                if self.offer(&joint):
                    heap[n_heap] = joint
                    sift_up(heap, n_heap)
                    n_heap += 1
            while n_heap > 0:
                joint = heap[0]
                n_heap -= 1
                if n_heap > 0:
                    heap[0] = heap[n_heap]
                    sift_down(heap, n_heap)
                left, right = joint.left, joint.right
                if pieces[left] != joint.left_piece or pieces[right] != joint.right_piece:
                    continue  # one of them has become part of another piece
                pieces[left], pieces[right] = joint.piece, JOINED
                after[left] = after[right]
                if after[left] < n:
                    before[after[left]] = left
                for side in range(2):
                    i = before[left] if side == 0 else left
                    if i < 0 or after[i] >= n:
                        continue
                    joint = Joint(NAN, i, after[i], pieces[i], pieces[after[i]], 0)
                    if self.offer(&joint):
                        heap[n_heap] = joint
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
        cdef int64_t n = PyList_GET_SIZE(pieces), i, begin = 0, end, n_left, whole
        cdef int64_t *found
        cdef list joined = []
        if PyList_GET_SIZE(words) != n:
            raise IndexError("not one word a piece")
        found = <int64_t *> malloc((n + 1) * sizeof(int64_t))
        if found == NULL:
            raise MemoryError
        try:
            for i in range(n):
                found[i] = pieces[i]
                if not 0 <= found[i] < self.n:
                    raise IndexError(f"token {found[i]} of {self.n}")
            while begin < n:
                end = begin + 1
                while end < n and words[end] == words[begin]:
                    end += 1
                n_left = end - begin
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
