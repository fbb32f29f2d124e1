/* What the AVX2 products share: a ymm register holds one number for each of eight rows. */
#ifndef MTPCORE_MATMUL_AVX2_H
#define MTPCORE_MATMUL_AVX2_H

#include <immintrin.h>

#include "matmul_kernels.h"

#define MTP_UNROLL _Pragma("GCC unroll 8")

/* One NaN for all: which operand's payload survives differs between instructions. */
static inline void mtp_store_rows(float *out, __m256 sum)
{
    const __m256 nan = _mm256_cmp_ps(sum, sum, _CMP_UNORD_Q);
    const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    _mm256_store_ps(out, _mm256_blendv_ps(sum, quiet, nan));
}

static inline __m256i mtp_broadcast(const int32_t *word)
{
    return _mm256_set1_epi32(*word);
}

static inline __m256 mtp_broadcast_float(const int32_t *word)
{
    return _mm256_castsi256_ps(_mm256_set1_epi32(*word));
}

static inline __m256 mtp_load_halves(const uint16_t *halves)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)halves));
}

/* Half a line: four columns of eight rows. */
static inline __m256i mtp_load_codes(const void *half_line)
{
    return _mm256_load_si256(half_line);
}

static inline __m256i mtp_low_nibbles(__m256i codes)
{
    return _mm256_and_si256(codes, _mm256_set1_epi8(15));
}

static inline __m256i mtp_high_nibbles(__m256i codes)
{
    return mtp_low_nibbles(_mm256_srli_epi16(codes, 4));
}

static inline __m256i mtp_widen(__m256i pairs)
{
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/* sum + scale * x_scale * integers, rounded after the product of the scales and at the end */
static inline __m256 mtp_add_block(__m256 sum, __m256i integers, __m256 scale, __m256 x_scale)
{
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(integers), _mm256_mul_ps(scale, x_scale), sum);
}

/* Run `eight_rows(n_tokens, first, count, group, n_blocks, row, words, out)` for the 32 rows of a
 * group, on at most four tokens of the tile at once: the accumulators of more would not fit. */
#define MTP_EIGHT_ROWS_AT_ONCE(name, eight_rows)                                                   \
    MTP_ALWAYS_INLINE void name(const int n_tokens, const void *group, int64_t n_blocks,           \
                                const void *tile, float (*out)[32])                                \
    {                                                                                              \
        const int half = n_tokens < 4 ? n_tokens : 4;                                              \
        for (int row = 0; row < 32; row += 8) {                                                    \
            eight_rows(n_tokens, 0, half, group, n_blocks, row, tile, out);                        \
            if (n_tokens > half)                                                                   \
                eight_rows(n_tokens, half, n_tokens - half, group, n_blocks, row, tile, out);      \
        }                                                                                          \
    }

#endif
