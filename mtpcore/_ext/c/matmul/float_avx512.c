/* F32, F16 and BF16 weights: one chain of fused multiply-adds for each row and token. */
#include "matmul/kernels_avx512.h"

MTP_ALWAYS_INLINE __m512 load_f32(const float *row) { return _mm512_load_ps(row); }

MTP_ALWAYS_INLINE __m512 load_f16(const uint16_t *row) { return mtp_load_halves(row); }

MTP_ALWAYS_INLINE __m512 load_bf16(const uint16_t *row)
{
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_load_si256((const __m256i *)row));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

#define FLOAT_KERNEL(name, type)                                                                   \
    MTP_ALWAYS_INLINE void name(const int n_tokens, const void *group, int64_t n_blocks,           \
                                const void *tile, float (*out)[32])                                \
    {                                                                                              \
        const type *weights = group;                                                               \
        const float *x = tile;                                                                     \
        __m512 sum0[MTP_TILE], sum1[MTP_TILE];                                                     \
        MTP_UNROLL                                                                                 \
        for (int t = 0; t < n_tokens; t++)                                                         \
            sum0[t] = sum1[t] = _mm512_setzero_ps();                                               \
        for (int64_t k = 0; k < n_blocks; k++, weights += 32, x += n_tokens) {                     \
            const __m512 w0 = load_##name(weights), w1 = load_##name(weights + 16);                \
            if (k % (16 / sizeof(type)) == 0)                                                      \
                mtp_fetch_ahead(weights, 512);                                                     \
            MTP_UNROLL                                                                             \
            for (int t = 0; t < n_tokens; t++) {                                                   \
                const __m512 value = _mm512_set1_ps(x[t]);                                         \
                sum0[t] = _mm512_fmadd_ps(w0, value, sum0[t]);                                     \
                sum1[t] = _mm512_fmadd_ps(w1, value, sum1[t]);                                     \
            }                                                                                      \
        }                                                                                          \
        MTP_UNROLL                                                                                 \
        for (int t = 0; t < n_tokens; t++) {                                                       \
            mtp_store_rows(out[t], sum0[t]);                                                       \
            mtp_store_rows(out[t] + 16, sum1[t]);                                                  \
        }                                                                                          \
    }                                                                                              \
    MTP_KERNELS_8(name, avx512)

FLOAT_KERNEL(f32, float)
FLOAT_KERNEL(f16, uint16_t)
FLOAT_KERNEL(bf16, uint16_t)
