"""Packed weight matrices times token rows, by ``c/matmul/matmul.h``; checks its arguments."""

import numpy as np

from mtpcore.errors import BackendError, CapacityError, GraphError

cdef extern from "core/memory.h" nogil:
    void *mtp_memory_new(size_t size)
    void mtp_memory_free(void *memory)

cdef extern from "matmul/packing.h" nogil:
    mtp_packing *mtp_packing_new(const mtp_matrix *mapped, void *packed, int64_t offset)
    void mtp_packing_free(mtp_packing *self)
    const void *mtp_packing_group(const mtp_packing *self, int64_t row)
    int64_t mtp_packing_left(const mtp_packing *self)
    int mtp_packing_is_over(const mtp_packing *self)

cdef extern from "core/rounding.h" nogil:
    unsigned mtp_round_to_nearest() noexcept
    void mtp_round_as(unsigned before) noexcept

cdef extern from "core/cpu.h" nogil:
    int mtp_fetch_default() noexcept

cdef int64_t LARGEST = <int64_t> 1 << 40  # elements; keeps all sizes inside int64


def is_native(int type):
    return bool(mtp_type_is_native(type))


def packed_bytes(int type, int64_t n_rows, int64_t n_cols):
    row_bytes(type, n_rows, n_cols)
    return mtp_packed_bytes(type, n_rows, n_cols)


cdef int64_t row_bytes(int type, int64_t n_rows, int64_t n_cols) except -1:
    """Bytes of a row in a file, after checking what all sizes are computed from."""
    if not mtp_type_is_native(type):
        raise GraphError("no kernels for this weight type", where="pack", got=type)
    cdef int64_t block = mtp_type_block(type)
    if not (0 < n_rows < LARGEST and 0 < n_cols < LARGEST and n_rows * n_cols < LARGEST):
        raise GraphError(
            "matrix of impossible size", where="pack", wanted=f"1 to {LARGEST - 1} elements",
            got=(n_rows, n_cols),
        )
    if n_cols % block != 0:
        raise GraphError(
            "columns do not fill whole blocks", where="pack",
            wanted=f"a multiple of {block}", got=n_cols,
        )
    return mtp_row_bytes(type, n_cols)


cdef class PackedMemory:
    def __cinit__(self, size_t n_bytes):
        self.data, self.size = mtp_memory_new(n_bytes), n_bytes
        if self.data == NULL:
            raise CapacityError(
                "no memory for packed weights", where="pack", wanted=f"{n_bytes} bytes",
            )

    def __dealloc__(self):
        mtp_memory_free(self.data)

    def take(self, int type, int64_t n_rows, int64_t n_cols):
        cdef size_t n_bytes = packed_bytes(type, n_rows, n_cols)
        # Before looking for room: making it may collect garbage, and let another thread take some.
        cdef PackedMatrix packed = PackedMatrix.__new__(PackedMatrix)
        if n_bytes > self.size - self.used:
            return None
        packed.memory = self
        packed.matrix = mtp_matrix(type, 0, n_rows, n_cols, <char *> self.data + self.used, NULL)
        self.used += n_bytes
        return packed


cdef class PackedMatrix:
    def __init__(self):
        raise BackendError("a packed matrix is not made by hand", where="PackedMatrix",
                           fix="call pack() or map_rows(), or take it from a PackedMemory")

    def __dealloc__(self):
        mtp_packing_free(self.packing)

    cdef bint settle(self) noexcept:
        """Note that all groups are packed, if they are: from now on nobody looks for the rows."""
        if self.matrix.packing != NULL and mtp_packing_is_over(self.packing):
            self.matrix.is_mapped, self.matrix.packing = 0, NULL
            self.matrix.data = mtp_packing_group(self.packing, 0)
            self.rows = None
        return self.matrix.packing == NULL

    def read_rows(self, data, int64_t offset=-1):
        cdef mtp_matrix *w = &self.matrix
        if w.is_mapped or self.packing != NULL:
            raise GraphError("a mapped matrix is what it is", where="PackedMatrix.read_rows")
        cdef const unsigned char[::1] rows = checked_bytes(data, w.type, w.n_rows, w.n_cols,
                                                           "PackedMatrix.read_rows")
        cdef mtp_matrix mapped = mtp_matrix(w.type, 1, w.n_rows, w.n_cols, &rows[0], NULL)
        cdef mtp_packing *packing = mtp_packing_new(&mapped, <void *> w.data, offset)
        if packing == NULL:
            raise CapacityError("no memory for packed weights", where="pack",
                                wanted=f"{w.n_rows // 32} bytes")
        mapped.packing = packing
        self.rows, self.packing, self.matrix = rows, packing, mapped

    @property
    def packed_share(self):
        if self.matrix.packing == NULL:
            return 0.0 if self.matrix.is_mapped else 1.0
        return 1 - mtp_packing_left(self.packing) / ((self.matrix.n_rows + 31) // 32)

    @property
    def type(self):
        return self.matrix.type

    @property
    def activation(self):
        return mtp_type_activation(self.matrix.type)

    @property
    def shape(self):
        return (self.matrix.n_rows, self.matrix.n_cols)

    @property
    def is_mapped(self):
        return not self.settle() or bool(self.matrix.is_mapped)

    @property
    def nbytes(self):
        cdef mtp_matrix *w = &self.matrix
        if w.is_mapped and w.packing == NULL:
            return w.n_rows * row_bytes(w.type, w.n_rows, w.n_cols)
        return mtp_packed_bytes(w.type, w.n_rows, w.n_cols)

    def fill(self, int64_t begin, data):
        cdef mtp_matrix *w = &self.matrix
        cdef int64_t each = row_bytes(w.type, w.n_rows, w.n_cols)
        if w.is_mapped:
            raise GraphError("a mapped matrix is what it is", where="PackedMatrix.fill")
        cdef const unsigned char[::1] rows = np.frombuffer(data, np.uint8)
        if not (0 <= begin <= w.n_rows and begin % 32 == 0):
            raise GraphError(
                "rows outside the matrix", where="PackedMatrix.fill",
                wanted=f"a multiple of 32 up to {w.n_rows}", got=begin,
            )
        cdef int64_t n = rows.shape[0] // each, end = begin + n
        if rows.shape[0] != n * each or end > w.n_rows or (end % 32 and end < w.n_rows):
            raise GraphError(
                "wrong number of bytes for the matrix", where="PackedMatrix.fill",
                wanted=f"{each} for each of {w.n_rows - begin} rows, or groups of 32",
                got=rows.shape[0],
            )
        if n == 0:
            return
        cdef const unsigned char *first = &rows[0]
        with nogil:
            mtp_pack(w.type, w.n_cols, first, begin, end, <void *> w.data)

    def row(self, int64_t index):
        if not 0 <= index < self.matrix.n_rows:
            raise GraphError(
                "row outside the matrix", where="PackedMatrix.row",
                wanted=f"0 <= row < {self.matrix.n_rows}", got=index,
            )
        out = np.empty(self.matrix.n_cols, np.float32)
        cdef float[::1] values = out
        cdef unsigned before = mtp_round_to_nearest()
        mtp_matrix_row(&self.matrix, index, &values[0])
        mtp_round_as(before)
        return out


def pack(data, int type, int64_t n_rows, int64_t n_cols):
    checked_bytes(data, type, n_rows, n_cols, "pack")
    packed = PackedMemory(packed_bytes(type, n_rows, n_cols)).take(type, n_rows, n_cols)
    packed.fill(0, data)
    return packed


def map_rows(data, int type, int64_t n_rows, int64_t n_cols):
    cdef const unsigned char[::1] rows = checked_bytes(data, type, n_rows, n_cols, "map_rows")
    cdef PackedMatrix mapped = PackedMatrix.__new__(PackedMatrix)
    mapped.rows = rows
    mapped.matrix = mtp_matrix(type, 1, n_rows, n_cols, &rows[0], NULL)
    return mapped


def checked_bytes(data, int type, int64_t n_rows, int64_t n_cols, where):
    cdef int64_t wanted = n_rows * row_bytes(type, n_rows, n_cols)
    rows = np.frombuffer(data, np.uint8)
    if rows.shape[0] != wanted:
        raise GraphError(
            "wrong number of bytes for the matrix", where=where, wanted=wanted, got=rows.shape[0],
        )
    return rows


def matmul(PackedMatrix packed not None, x, int64_t row_begin=0, row_end=None, *, rows=None,
           out=None, out_rows=None):
    cdef object _held = packed.rows  # another thread may settle it
    cdef mtp_matrix copy = packed.matrix
    cdef mtp_matrix *w = &copy
    cdef int64_t end = w.n_rows if row_end is None else row_end
    cdef const float[:, ::1] tokens = np.ascontiguousarray(x, np.float32)
    if tokens.shape[1] != w.n_cols:
        raise GraphError(
            "token rows do not fit the matrix", where="matmul",
            wanted=f"{w.n_cols} columns", got=tokens.shape[1],
        )
    if not (0 <= row_begin < end <= w.n_rows and row_begin % 32 == 0
            and (end % 32 == 0 or end == w.n_rows)):
        raise GraphError(
            "impossible row range", where="matmul",
            wanted=f"multiples of 32 up to {w.n_rows}", got=(row_begin, end),
        )
    cdef const int32_t[::1] gather = checked_rows(rows, tokens.shape[0], "rows")
    cdef int64_t n_tokens = tokens.shape[0] if rows is None else gather.shape[0]
    if out is None:
        out = np.empty((n_tokens, end - row_begin), np.float32)
    cdef float[:, :] y = out
    cdef const int32_t[::1] scatter = checked_rows(out_rows, y.shape[0], "out_rows")
    cdef int64_t n_out = y.shape[0] if out_rows is None else scatter.shape[0]
    if (n_out != n_tokens or y.shape[1] != end - row_begin or y.strides[1] != sizeof(float)
            or y.strides[0] % <Py_ssize_t> sizeof(float) != 0):
        raise GraphError(
            "output does not fit", where="matmul",
            wanted=f"{n_tokens} contiguous rows of {end - row_begin}",
            got=f"{n_out} rows of {y.shape[1]}",
        )
    if n_tokens == 0:
        return out
    cdef int activation = mtp_type_activation(w.type)
    cdef unsigned char[::1] prepared = np.empty(
        mtp_activation_bytes(activation, n_tokens, w.n_cols), np.uint8
    )
    cdef PackedMemory scratch = PackedMemory(mtp_matmul_scratch_bytes(w))
    cdef const int32_t *token_rows = NULL
    cdef const int32_t *y_rows = NULL
    if rows is not None:
        token_rows = &gather[0]
    if out_rows is not None:
        y_rows = &scatter[0]
    cdef int64_t y_stride = y.strides[0] // <int64_t> sizeof(float)
    cdef const float *from_rows = &tokens[0, 0]
    cdef float *to_rows = &y[0, 0] - row_begin
    cdef void *tiles = &prepared[0]
    cdef unsigned before
    with nogil:
        before = mtp_round_to_nearest()
        mtp_prepare(activation, from_rows, w.n_cols, token_rows, n_tokens, w.n_cols, 0,
                    (n_tokens + 7) // 8, 0, w.n_cols, tiles)
        mtp_matmul(w, tiles, n_tokens, n_tokens, to_rows, y_stride, y_rows, row_begin, end,
                   scratch.data, mtp_fetch_default(), NULL)
        mtp_round_as(before)
    return out


def activation_block(int activation):
    return mtp_activation_block(activation)


def checked_rows(rows, int64_t n_rows, name):
    """Return row numbers as int32[n], after checking them as they were given."""
    given = np.asarray(() if rows is None else rows)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise GraphError("row numbers are integers in a row", where=f"matmul, {name}",
                         wanted="int32[n]", got=f"{given.dtype}{list(given.shape)}")
    if given.size and not (0 <= given.min() and given.max() < n_rows):
        raise GraphError(
            "row index out of range", where=f"matmul, {name}", wanted=f"0 <= row < {n_rows}",
            got=(int(given.min()), int(given.max())),
        )
    return np.ascontiguousarray(given, np.int32)
