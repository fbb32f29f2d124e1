/* Matmul of packed weight matrices with few or many token rows.
 *
 * y[t][r] = sum_k w[r][k] * x[t][k], for rows r in [row_begin, row_end).
 *
 * The contract that everything above relies on: a value y[t][r] depends only on row r of the
 * weights and on token row t, bit for bit; never on n_tokens, on the position of t in the batch,
 * on the row range or on the instruction set. Each output is one chain of fused multiply-adds in
 * ascending k; integer sums inside a block are exact.
 *
 * Type numbers are GGUF's; matmul/weight_types.h lists them.
 */
#ifndef MTPCORE_MATMUL_H
#define MTPCORE_MATMUL_H

#include <stddef.h>
#include <stdint.h>

#include "core/interrupt.h"
#include "matmul/weight_types.h"

/* Tokens in a full tile of prepared activations. */
enum { MTP_TILE = 8 };

/* Which groups of a mapped matrix are packed by now (matmul/packing.h). */
typedef struct mtp_packing mtp_packing;

/* A matrix, packed or mapped. Packed: groups of 32 output rows, the last padded with zero rows;
 * 64-byte aligned, mtp_packed_bytes(). Mapped: GGUF rows as they lie in a file, aligned to nothing;
 * each group is packed into scratch when it is needed, and so gives the same bits. */
typedef struct {
    int32_t type, is_mapped;
    int64_t n_rows; /* outputs */
    int64_t n_cols; /* inputs; a multiple of the type's block */
    const void *data;
    const mtp_packing *packing; /* of a mapped matrix whose groups are packed meanwhile, or NULL */
} mtp_matrix;

size_t mtp_packed_bytes(int32_t type, int64_t n_rows, int64_t n_cols);

/* Pack GGUF rows [row_begin, row_end) of a matrix: whole groups, or up to its last row. `rows`
 * points at row `row_begin` in file layout, `packed` at the start of the packed matrix. */
void mtp_pack(int32_t type, int64_t n_cols, const void *rows, int64_t row_begin, int64_t row_end,
              void *packed);

/* Rows [begin, end) of a matrix; begin is a multiple of 32, end one or n_rows. */
mtp_matrix mtp_matrix_part(const mtp_matrix *w, int64_t begin, int64_t end);

/* out[n_cols] = row `row` of a matrix as float32 (embedding lookup). */
void mtp_matrix_row(const mtp_matrix *w, int64_t row, float *out);

/* Prepared activations: token rows in tiles of up to 8, laid out as the kernels read them. */
size_t mtp_activation_bytes(int activation, int64_t n_tokens, int64_t n_cols);

/* Prepare columns [col_begin, col_end), whole blocks of them, of tiles [tile_begin, tile_end)
 * (tile i = token rows 8i .. 8i+7 of n_tokens). Token t is x + (rows ? rows[t] : t) * x_stride.
 * A non-finite input gives a non-finite scale. */
void mtp_prepare(int activation, const float *x, int64_t x_stride, const int32_t *rows,
                 int64_t n_tokens, int64_t n_cols, int64_t tile_begin, int64_t tile_end,
                 int64_t col_begin, int64_t col_end, void *prepared);

/* Columns that are prepared together. */
int64_t mtp_activation_block(int activation);

/* Bytes of 64-byte aligned scratch for a matmul with a matrix; none where it is packed. */
size_t mtp_matmul_scratch_bytes(const mtp_matrix *w);

/* Multiply n_tokens of the n_prepared tokens that were prepared together: those from a multiple of
 * 32 on, up to another or to the last, with `prepared` where the first of them is. Row r's result
 * of token t goes to y + (out_rows ? out_rows[t] : t) * y_stride + r. row_begin is a multiple of
 * 32; row_end a multiple of 32 or n_rows. Weights are prefetched in the way `fetch` (core/cpu.h).
 * Some results are not written where the run is interrupted. */
void mtp_matmul(const mtp_matrix *w, const void *prepared, int64_t n_prepared, int64_t n_tokens,
                float *y, int64_t y_stride, const int32_t *out_rows, int64_t row_begin,
                int64_t row_end, void *scratch, int fetch, mtp_interrupt *interrupt);

#endif
