/* The loops around the product kernels. */
#include "matmul.h"

#include <string.h>

#include "cpu.h"
#include "matmul_kernels.h"

/* Prepared activations that one group is multiplied with before the next; they stay in L2. */
enum { TOKEN_BLOCK_BYTES = 512 * 1024 };

#define TABLE(isa)                                                                                 \
    {                                                                                              \
        [MTP_F32] = mtp_f32_##isa, [MTP_F16] = mtp_f16_##isa, [MTP_BF16] = mtp_bf16_##isa,         \
        [MTP_Q8_0] = mtp_q8_0_##isa, [MTP_Q4_0] = mtp_q4_0_##isa, [MTP_Q4_1] = mtp_q4_1_##isa,     \
        [MTP_Q5_0] = mtp_q5_0_##isa, [MTP_Q5_1] = mtp_q5_1_##isa,                                  \
        [MTP_IQ4_NL] = mtp_iq4_nl_##isa, [MTP_MXFP4] = mtp_mxfp4_##isa,                            \
        [MTP_Q2_K] = mtp_q2_k_##isa, [MTP_Q3_K] = mtp_q3_k_##isa, [MTP_Q4_K] = mtp_q4_k_##isa,     \
        [MTP_Q5_K] = mtp_q5_k_##isa, [MTP_Q6_K] = mtp_q6_k_##isa,                                  \
        [MTP_IQ4_XS] = mtp_iq4_xs_##isa                                                            \
    }

static const mtp_product *const tables[MTP_ISA_COUNT][MTP_TYPES] = {
    [MTP_ISA_BASE] = TABLE(portable),
#if defined(__x86_64__)
    [MTP_ISA_AVX2] = TABLE(avx2),
    [MTP_ISA_AVX512] = TABLE(avx512),
#endif
};

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void mtp_matmul(const mtp_matrix *w, const void *prepared, int64_t n_tokens, float *y,
                int64_t y_stride, const int32_t *out_rows, int64_t row_begin, int64_t row_end)
{
    const mtp_product *products = tables[mtp_isa()][w->type];
    const int activation = mtp_type_activation(w->type);
    const int64_t width = mtp_tile_width(activation);
    const int64_t token_bytes = mtp_token_bytes(activation, w->n_cols);
    const int64_t group_bytes = mtp_group_bytes(w->type, w->n_cols);
    const int64_t tiles_in_block = TOKEN_BLOCK_BYTES / (token_bytes * MTP_TILE + 1) + 1;
    const int64_t n_blocks = w->n_cols / mtp_type_block(w->type);
    _Alignas(64) float out[MTP_TILE][MTP_GROUP_ROWS];

    for (int64_t block = 0; block < n_tokens; block += tiles_in_block * MTP_TILE) {
        const int64_t block_end = smaller(block + tiles_in_block * MTP_TILE, n_tokens);
        for (int64_t row = row_begin; row < row_end; row += MTP_GROUP_ROWS) {
            const char *group = (const char *)w->data + row / MTP_GROUP_ROWS * group_bytes;
            const size_t row_bytes = (size_t)smaller(MTP_GROUP_ROWS, row_end - row) * sizeof(float);
            for (int64_t first = block; first < block_end; first += width) {
                const int64_t n = smaller(width, n_tokens - first);
                products[n - 1](group, n_blocks, (const char *)prepared + first * token_bytes, out);
                for (int64_t t = 0; t < n; t++) {
                    const int64_t token = out_rows ? out_rows[first + t] : first + t;
                    memcpy(y + token * y_stride + row, out[t], row_bytes);
                }
            }
        }
    }
}
