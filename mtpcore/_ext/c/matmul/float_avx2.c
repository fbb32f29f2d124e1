/* F32, F16 and BF16 weights: one chain of fused multiply-adds for each row and token. */
#include "matmul/kernels_ymm.h"

enum {
    TOKENS_AT_ONCE = 3,  /* times 32 rows: twelve of the sixteen registers accumulate */
    COLUMNS_AT_ONCE = 64 /* of all tokens: their weights stay in the first-level cache */
};

MTP_ALWAYS_INLINE __m256 load_f32(const float *rows) { return _mm256_load_ps(rows); }

MTP_ALWAYS_INLINE __m256 load_f16(const uint16_t *rows) { return mtp_load_halves(rows); }

MTP_ALWAYS_INLINE __m256 load_bf16(const uint16_t *rows)
{
    const __m256i bits = _mm256_cvtepu16_epi32(_mm_load_si128((const __m128i *)rows));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}

#define FLOAT_KERNEL(name, type)                                                                   \
    MTP_ALWAYS_INLINE void name##_tokens(const int n_tokens, const int first, const int count,     \
                                         const type *weights, int64_t n_cols, const float *x,      \
                                         float (*out)[32])                                         \
    {                                                                                              \
        __m256 sum[4][TOKENS_AT_ONCE];                                                             \
        MTP_UNROLL                                                                                 \
        for (int part = 0; part < 4; part++) {                                                     \
            MTP_UNROLL                                                                             \
            for (int t = 0; t < count; t++)                                                        \
                sum[part][t] = _mm256_load_ps(out[first + t] + 8 * part);                          \
        }                                                                                          \
        for (int64_t k = 0; k < n_cols; k++, weights += 32, x += n_tokens) {                       \
            if (first == 0 && k % (16 / sizeof(type)) == 0)                                        \
                mtp_fetch_ahead(weights, 512);                                                     \
            MTP_UNROLL                                                                             \
            for (int part = 0; part < 4; part++) {                                                 \
                const __m256 w = load_##name(weights + 8 * part);                                  \
                MTP_UNROLL                                                                         \
                for (int t = 0; t < count; t++)                                                    \
                    sum[part][t] = _mm256_fmadd_ps(w, _mm256_set1_ps(x[first + t]), sum[part][t]); \
            }                                                                                      \
        }                                                                                          \
        MTP_UNROLL                                                                                 \
        for (int part = 0; part < 4; part++) {                                                     \
            MTP_UNROLL                                                                             \
            for (int t = 0; t < count; t++)                                                        \
                _mm256_store_ps(out[first + t] + 8 * part, sum[part][t]);                          \
        }                                                                                          \
    }                                                                                              \
    MTP_ALWAYS_INLINE void name(const int n_tokens, const void *group, int64_t n_blocks,           \
                                const void *tile, float (*out)[32])                                \
    {                                                                                              \
        const type *weights = group;                                                               \
        const float *x = tile;                                                                     \
        memset(out, 0, (size_t)n_tokens * sizeof *out);                                            \
        for (int64_t k = 0; k < n_blocks; k += COLUMNS_AT_ONCE) {                                  \
            const int64_t left = n_blocks - k;                                                     \
            const int64_t n_cols = left < COLUMNS_AT_ONCE ? left : COLUMNS_AT_ONCE;                \
            MTP_UNROLL                                                                             \
            for (int t = 0; t < n_tokens; t += TOKENS_AT_ONCE) {                                   \
                const int more = n_tokens - t;                                                     \
                name##_tokens(n_tokens, t, more < TOKENS_AT_ONCE ? more : TOKENS_AT_ONCE, weights, \
                              n_cols, x, out);                                                     \
            }                                                                                      \
            weights += 32 * n_cols;                                                                \
            x += n_tokens * n_cols;                                                                \
        }                                                                                          \
        mtp_finish(n_tokens, out);                                                                 \
    }                                                                                              \
    MTP_KERNELS_8(name, avx2)

FLOAT_KERNEL(f32, float)
FLOAT_KERNEL(f16, uint16_t)
FLOAT_KERNEL(bf16, uint16_t)
