"""Joining the letters of words: the best pair first."""

from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject_Hash
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_Concat, PyUnicode_GET_LENGTH
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

cdef enum:
    KNOWN_BITS = 16  # of the number of pairs that are remembered
    N_LETTERS = 1 << 16  # characters whose tokens are remembered
    N_WORDS = 1 << 14  # that are remembered, until there are more
    LONGEST_WORD = 32  # of these, in characters
    UNSEEN = -2
    NO_TOKEN = -1

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
    cdef list texts, merges
    cdef dict ids, words
    cdef const unsigned char[::1] joinable
    cdef const double[::1] scores
    cdef const int32_t[::1] of_bytes
    cdef int32_t unknown
    cdef bint has_scores, whole_words
    cdef int64_t n
    cdef Known *known  # what pairs make that texts repeat; one may take another's place
    cdef int32_t *letters  # of characters; NO_TOKEN: none
    cdef int32_t *ranks  # of merges by their hashes, from 1 on; 0: none
    cdef uint64_t mask  # of those
    cdef readonly str missed  # the last pair that has a rank and makes no token

    def __cinit__(self):
        self.letters = self.ranks = NULL
        self.known = <Known *> calloc(1 << KNOWN_BITS, sizeof(Known))
        self.letters = <int32_t *> malloc(N_LETTERS * sizeof(int32_t))
        if self.known == NULL or self.letters == NULL:
            raise MemoryError
        for i in range(N_LETTERS):
            self.letters[i] = UNSEEN

    def __dealloc__(self):
        free(self.known)
        free(self.letters)
        free(self.ranks)

    def __init__(
        self, list texts not None, dict ids not None, const unsigned char[::1] joinable not None,
        const int32_t[::1] of_bytes not None, unknown=None, const double[::1] scores=None,
        list merges=None, bint whole_words=False,
    ):
        if self.words is not None:  # what it remembers is of the tokens it was made of
            raise RuntimeError("made once")
        self.texts, self.ids, self.joinable = texts, ids, joinable
        self.scores, self.has_scores, self.whole_words = scores, scores is not None, whole_words
        self.of_bytes, self.words = of_bytes, {}
        self.unknown = NO_TOKEN if unknown is None else unknown
        self.n = PyList_GET_SIZE(texts)
        if self.n > INT32_MAX:
            raise OverflowError("more tokens than an id may name")
        if joinable.shape[0] != self.n or (self.has_scores and scores.shape[0] != self.n):
            raise IndexError("not one entry a token")
        if of_bytes.shape[0] != 256:
            raise IndexError("not one entry a byte")
        for token in of_bytes:
            if not (NO_TOKEN if self.unknown >= 0 else 0) <= token < self.n:
                raise IndexError(f"token {token} of {self.n}")
        if not NO_TOKEN <= self.unknown < self.n:
            raise IndexError(f"token {unknown} of {self.n}")
        if self.has_scores == (merges is not None):
            raise ValueError("scores or merges")
        if merges is not None:
            self.rank(list(merges))

    cdef int rank(self, list merges) except -1:
        """Rank merges by their order; of equal ones the last holds."""
        cdef int64_t n = PyList_GET_SIZE(merges), i
        cdef uint64_t n_places = 2
        if n >= INT32_MAX:
            raise OverflowError("more merges than a rank may name")
        while n_places < 2 * <uint64_t> n:
            n_places *= 2
        self.merges, self.mask = merges, n_places - 1
        self.ranks = <int32_t *> calloc(n_places, sizeof(int32_t))
        if self.ranks == NULL:
            raise MemoryError
        for i in range(n):
            self.find_rank(merges[i])[0] = <int32_t> i + 1
        return 0

    cdef int32_t *find_rank(self, str merge) except NULL:
        """Return the rank of a merge, or the place where it would be."""
        cdef uint64_t at = <uint64_t> PyObject_Hash(merge)
        cdef str other
        while self.ranks[at & self.mask] != 0:
            other = self.merges[self.ranks[at & self.mask] - 1]
            if other == merge:
                break
            at += 1
        return &self.ranks[at & self.mask]

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
        cdef int32_t rank
        if self.has_scores:
            known.piece = self.find(PyUnicode_Concat(left, right))
            if known.piece >= 0:
                known.rank = -self.scores[known.piece]
            return 0
        pair = PyUnicode_Concat(PyUnicode_Concat(left, " "), right)
        rank = self.find_rank(pair)[0]
        if rank != 0:
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

    cdef int32_t find_letter(self, Py_UCS4 character) except -2:
        """Return the token of a character; NO_TOKEN where there is none."""
        cdef int32_t token
        if <uint64_t> character < N_LETTERS and self.letters[character] != UNSEEN:
            return self.letters[character]
        found = self.ids.get(chr(character), NO_TOKEN)
        if not NO_TOKEN <= found < self.n:
            raise IndexError(f"token {found} of {self.n}")
        token = found
        if <uint64_t> character < N_LETTERS:
            self.letters[character] = token
        return token

    cdef int32_t spell_bytes(
        self, const unsigned char *text, Py_ssize_t n, int32_t *found
    ) noexcept:
        """Write the tokens of bytes; return how many: none where one has no token."""
        cdef Py_ssize_t i
        for i in range(n):
            found[i] = self.of_bytes[text[i]]
            if found[i] == NO_TOKEN:
                return 0
        return <int32_t> n

    cdef int32_t spell(self, str text, int32_t *found) except -1:
        """Write the letters of a text, and return how many there are."""
        cdef Py_ssize_t n_bytes
        cdef const char *as_bytes
        cdef str letter
        cdef Py_UCS4 character
        cdef int32_t n = 0, n_more, token
        cdef bint was_unknown = False
        if self.unknown == NO_TOKEN:
            as_bytes = PyUnicode_AsUTF8AndSize(text, &n_bytes)
            return self.spell_bytes(<const unsigned char *> as_bytes, n_bytes, found)
        for character in text:
            token = self.find_letter(character)
            if token != NO_TOKEN:
                found[n] = token
                n_more = 1
            else:
                letter = chr(character)  # its bytes are in it
                as_bytes = PyUnicode_AsUTF8AndSize(letter, &n_bytes)
                n_more = self.spell_bytes(<const unsigned char *> as_bytes, n_bytes, found + n)
                if n_more == 0 and not was_unknown:
                    found[n] = self.unknown
                    n += 1
            was_unknown = n_more == 0
            n += n_more
        return n

    cdef list join_text(self, str text):
        cdef int64_t n_bytes = 4 * <int64_t> PyUnicode_GET_LENGTH(text), i
        cdef int32_t n, whole = NO_TOKEN
        cdef int32_t *found
        if n_bytes > INT32_MAX:
            raise OverflowError("more letters than a text may have")
        found = <int32_t *> malloc(<size_t> (n_bytes + 1) * sizeof(int32_t))
        if found == NULL:
            raise MemoryError
        try:
            n = self.spell(text, found)
            if n > 1:
                if self.whole_words:
                    whole = self.find("".join([self.texts[found[i]] for i in range(n)]))
                if whole != NO_TOKEN:
                    found[0], n = whole, 1
                else:
                    n = self.join_word(found, n)
            return [found[i] for i in range(n)]
        finally:
            free(found)

    def join(self, list words not None):
        cdef list joined = [], tokens
        cdef str word
        for word in words:
            tokens = self.words.get(word)
            if tokens is None:
                tokens = self.join_text(word)
                if PyUnicode_GET_LENGTH(word) <= LONGEST_WORD:
                    if len(self.words) >= N_WORDS:
                        self.words.clear()
                    self.words[word] = tokens
            joined.extend(tokens)
        return joined
