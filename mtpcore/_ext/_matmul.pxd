from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t

from mtpcore._ext._interrupt cimport mtp_interrupt


cdef extern from "matmul/matmul.h" nogil:
    ctypedef struct mtp_packing:
        pass

    ctypedef struct mtp_matrix:
        int32_t type, is_mapped
        int64_t n_rows
        int64_t n_cols
        const void *data
        const mtp_packing *packing

    int mtp_type_is_native(int32_t type)
    int64_t mtp_type_block(int32_t type)
    int64_t mtp_row_bytes(int32_t type, int64_t n_cols)
    int mtp_type_activation(int32_t type)
    size_t mtp_packed_bytes(int32_t type, int64_t n_rows, int64_t n_cols)
    void mtp_pack(int32_t type, int64_t n_cols, const void *rows, int64_t row_begin,
                  int64_t row_end, void *packed)
    void mtp_matrix_row(const mtp_matrix *w, int64_t row, float *out)
    size_t mtp_activation_bytes(int activation, int64_t n_tokens, int64_t n_cols)
    void mtp_prepare(int activation, const float *x, int64_t x_stride, const int32_t *rows,
                     int64_t n_tokens, int64_t n_cols, int64_t tile_begin, int64_t tile_end,
                     int64_t col_begin, int64_t col_end, void *prepared)
    int64_t mtp_activation_block(int activation)
    size_t mtp_matmul_scratch_bytes(const mtp_matrix *w)
    void mtp_matmul(const mtp_matrix *w, const void *prepared, int64_t n_prepared,
                    int64_t n_tokens, float *y, int64_t y_stride, const int32_t *out_rows,
                    int64_t row_begin, int64_t row_end, void *scratch, int fetch,
                    mtp_interrupt *interrupt)


cdef class PackedMemory:
    cdef void *data
    cdef size_t size, used


cdef class PackedMatrix:
    cdef mtp_matrix matrix
    cdef mtp_packing *packing  # while rows are read where they lie, to be packed into the memory
    cdef object memory         # what the groups lie in
    cdef object rows           # what mapped rows lie in
    cdef bint settle(self) noexcept
