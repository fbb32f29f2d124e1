"""Cutting a text: where added tokens are, and into the pieces that are likeliest together."""

from cpython.list cimport PyList_GET_SIZE
from cpython.unicode cimport PyUnicode_GET_LENGTH
from libc.stdint cimport INT32_MAX, int32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

cdef enum:
    NO_TEXT = -1
    N_CHARACTERS = 0x110000

cdef double PENALTY = 10.0  # SentencePiece's, of a character that is no piece, below the worst


cdef class Trie:
    """Texts by what they begin with, in a table of hashes; a node is its place there."""

    cdef uint64_t *keys  # of the node above and a character; 0: no node
    cdef int32_t *ends  # which text ends at a node; NO_TEXT: none
    cdef uint64_t mask
    cdef uint64_t root

    def __cinit__(self):
        self.keys, self.ends = NULL, NULL

    def __dealloc__(self):
        free(self.keys)
        free(self.ends)

    def __init__(self, list texts not None):
        cdef uint64_t n_places = 2, n_characters = 0, above, node
        cdef int32_t i
        cdef str text
        cdef Py_UCS4 character
        if self.keys != NULL:
            raise RuntimeError("made once")
        for text in texts:
            if not text:
                raise ValueError("an empty text")
            n_characters += <uint64_t> PyUnicode_GET_LENGTH(text)
        if n_characters > INT32_MAX or PyList_GET_SIZE(texts) > INT32_MAX:
            raise OverflowError("more characters than places")
        while n_places < 2 * n_characters:
            n_places *= 2
        self.mask, self.root = n_places - 1, n_places
        self.keys = <uint64_t *> calloc(n_places, sizeof(uint64_t))
        self.ends = <int32_t *> malloc(n_places * sizeof(int32_t))
        if self.keys == NULL or self.ends == NULL:
            raise MemoryError
        memset(self.ends, 0xFF, n_places * sizeof(int32_t))
        for i in range(<int32_t> PyList_GET_SIZE(texts)):
            text, node = texts[i], self.root
            for character in text:
                above, node = node, self.find(node, character)
                self.keys[node] = self.key(above, character)
            self.ends[node] = i

    cdef inline uint64_t key(self, uint64_t node, Py_UCS4 character) noexcept nogil:
        return node * N_CHARACTERS + <uint64_t> character + 1

    cdef inline uint64_t find(self, uint64_t node, Py_UCS4 character) noexcept nogil:
        """Return the node that follows one, or the place where it would be."""
        cdef uint64_t key = self.key(node, character)
        cdef uint64_t at = (key * <uint64_t> 0x9E3779B97F4A7C15) >> 20
        while self.keys[at & self.mask] not in (0, key):
            at += 1
        return at & self.mask


cdef class Cutter:
    cdef list tokens
    cdef const unsigned char[::1] special
    cdef Trie trie
    cdef bint begins[256]  # whether a text begins with a character of that lowest byte

    def __init__(
        self, list texts not None, list tokens not None, const unsigned char[::1] special not None
    ):
        cdef str text
        if not PyList_GET_SIZE(tokens) == PyList_GET_SIZE(texts) == special.shape[0]:
            raise IndexError("not one token a text")
        if self.trie is not None:
            raise RuntimeError("made once")
        self.trie, self.tokens, self.special = Trie(texts), tokens, special
        memset(self.begins, 0, sizeof(self.begins))
        for text in texts:
            self.begins[<uint64_t> text[0] & 0xFF] = True

    def cut(self, str text not None, bint special):
        cdef Py_ssize_t n = PyUnicode_GET_LENGTH(text), begin = 0, at = 0, end, i
        cdef uint64_t node
        cdef int32_t found
        cdef Trie trie = self.trie
        cdef list parts = []
        while at < n:
            if not self.begins[<uint64_t> text[at] & 0xFF]:
                at += 1
                continue
            node, found, end = trie.root, NO_TEXT, at + 1
            for i in range(at, n):
                node = trie.find(node, text[i])
                if trie.keys[node] == 0:
                    break
                if trie.ends[node] != NO_TEXT:
                    found, end = trie.ends[node], i + 1
            if found != NO_TEXT and (special or not self.special[found]):
                if begin < at:
                    parts.append(text[begin:at])
                parts.append(self.tokens[found])
                begin = end
            at = end
        if begin < n:
            parts.append(text[begin:])
        return parts


cdef struct Best:
    double score  # of the likeliest pieces up to a place
    Py_ssize_t begin  # of the last of them; -1: no pieces end there
    int32_t piece  # that one; NO_TEXT: an unknown character


cdef inline void improve(Best *best, double score, Py_ssize_t begin, int32_t piece) noexcept nogil:
    if best.begin < 0 or score > best.score:
        best.score, best.begin, best.piece = score, begin, piece


cdef class Segmenter:
    cdef list tokens
    cdef const double[::1] scores
    cdef double unknown
    cdef Trie trie

    def __init__(
        self,
        list texts not None,
        list tokens not None,
        const double[::1] scores not None,
        unknown=None,
    ):
        cdef Py_ssize_t i
        if not PyList_GET_SIZE(tokens) == PyList_GET_SIZE(texts) == scores.shape[0]:
            raise IndexError("not one token and score a text")
        if self.trie is not None:
            raise RuntimeError("made once")
        self.trie, self.tokens, self.scores = Trie(texts), tokens, scores
        self.unknown = scores[0] if scores.shape[0] else 0.0
        for i in range(scores.shape[0]):
            self.unknown = min(self.unknown, scores[i])
        self.unknown -= PENALTY
        if unknown is not None:
            self.unknown = unknown

    cdef void look(self, str text, Py_ssize_t n, Best *best) noexcept:
        """Note for each place of a text what ends there in the likeliest pieces up to it."""
        cdef Py_ssize_t begin, i
        cdef uint64_t node
        cdef int32_t piece
        cdef bint is_known
        cdef Trie trie = self.trie
        best[0] = Best(0.0, 0, NO_TEXT)
        for i in range(1, n + 1):
            best[i] = Best(0.0, -1, NO_TEXT)
        for begin in range(n):
            node, is_known = trie.root, False
            for i in range(begin, n):
                node = trie.find(node, text[i])
                if trie.keys[node] == 0:
                    break
                piece = trie.ends[node]
                if piece != NO_TEXT:
                    improve(&best[i + 1], best[begin].score + self.scores[piece], begin, piece)
                    is_known = is_known or i == begin
            if not is_known:
                improve(&best[begin + 1], best[begin].score + self.unknown, begin, NO_TEXT)

    def cut(self, str text not None):
        cdef Py_ssize_t n = PyUnicode_GET_LENGTH(text), at, end
        cdef Best *best = <Best *> malloc(<size_t> (n + 1) * sizeof(Best))
        cdef list pieces = []
        if best == NULL:
            raise MemoryError
        try:
            self.look(text, n, best)
            at = n
            while at > 0:
                end = at
                if best[at].piece != NO_TEXT:
                    pieces.append(self.tokens[best[at].piece])
                    at = best[at].begin
                    continue
                while at > 0 and best[at].piece == NO_TEXT:
                    at = best[at].begin
                pieces.append(text[at:end])
        finally:
            free(best)
        pieces.reverse()
        return pieces
