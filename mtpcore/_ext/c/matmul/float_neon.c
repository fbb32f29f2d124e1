/* F32, F16 and BF16 weights: one chain of fused multiply-adds for each row and token. */
#include "matmul/kernels_neon.h"

/* Columns that are worked off for some of the rows before it is the turn of others. */
enum { COLUMNS_AT_ONCE = 64 };

MTP_ALWAYS_INLINE float32x4_t load_f32(const float *rows) { return vld1q_f32(rows); }

MTP_ALWAYS_INLINE float32x4_t load_f16(const uint16_t *rows) { return mtp_load_halves(rows); }

MTP_ALWAYS_INLINE float32x4_t load_bf16(const uint16_t *rows)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(rows), 16));
}

/* Rows whose sums fit the registers. */
MTP_ALWAYS_INLINE int rows_at_once(const int n_tokens)
{
    return n_tokens <= 3 ? 32 : n_tokens <= 6 ? 16 : 8;
}

#define FLOAT_KERNEL(name, type)                                                                   \
    MTP_ALWAYS_INLINE void name##_rows(const int n_tokens, const type *weights, int64_t n_cols,    \
                                       const float *x, float *sums, int fetches)                   \
    {                                                                                              \
        const int n_parts = rows_at_once(n_tokens) / 4;                                            \
        float32x4_t sum[8][MTP_TILE];                                                              \
        MTP_UNROLL                                                                                 \
        for (int part = 0; part < n_parts; part++) {                                               \
            MTP_UNROLL                                                                             \
            for (int t = 0; t < n_tokens; t++)                                                     \
                sum[part][t] = vld1q_f32(sums + 32 * t + 4 * part);                                \
        }                                                                                          \
        for (int64_t k = 0; k < n_cols; k++, weights += 32, x += n_tokens) {                       \
            if (fetches && k % (16 / sizeof(type)) == 0)                                           \
                mtp_fetch_ahead(weights, 512);                                                     \
            MTP_UNROLL                                                                             \
            for (int part = 0; part < n_parts; part++) {                                           \
                const float32x4_t w = load_##name(weights + 4 * part);                             \
                MTP_UNROLL                                                                         \
                for (int t = 0; t < n_tokens; t++)                                                 \
                    sum[part][t] = vfmaq_n_f32(sum[part][t], w, x[t]);                             \
            }                                                                                      \
        }                                                                                          \
        MTP_UNROLL                                                                                 \
        for (int part = 0; part < n_parts; part++) {                                               \
            MTP_UNROLL                                                                             \
            for (int t = 0; t < n_tokens; t++)                                                     \
                vst1q_f32(sums + 32 * t + 4 * part, sum[part][t]);                                 \
        }                                                                                          \
    }                                                                                              \
    MTP_ALWAYS_INLINE void name(const int n_tokens, const void *group, int64_t n_blocks,           \
                                const void *tile, float (*out)[32])                                \
    {                                                                                              \
        const type *weights = group;                                                               \
        const float *x = tile;                                                                     \
        memset(out, 0, (size_t)n_tokens * sizeof *out);                                            \
        for (int64_t k = 0; k < n_blocks; k += COLUMNS_AT_ONCE) {                                  \
            const int64_t n_cols =                                                                 \
                n_blocks - k < COLUMNS_AT_ONCE ? n_blocks - k : COLUMNS_AT_ONCE;                   \
            for (int row = 0; row < 32; row += rows_at_once(n_tokens))                             \
                name##_rows(n_tokens, weights + 32 * k + row, n_cols, x + n_tokens * k,            \
                            out[0] + row, row == 0);                                               \
        }                                                                                          \
        for (int t = 0; t < n_tokens; t++)                                                         \
            for (int row = 0; row < 32; row += 4)                                                  \
                mtp_store_rows(out[t] + row, vld1q_f32(out[t] + row));                             \
    }                                                                                              \
    MTP_KERNELS_8(name, neon)

FLOAT_KERNEL(f32, float)
FLOAT_KERNEL(f16, uint16_t)
FLOAT_KERNEL(bf16, uint16_t)
