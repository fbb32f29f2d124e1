/* What the AVX2 kernels share: a ymm register holds one number for each of eight rows. */
#ifndef MTPCORE_MATMUL_AVX2_H
#define MTPCORE_MATMUL_AVX2_H

#include <immintrin.h>

#include "matmul/kernels.h"

/* One NaN for all: which operand's payload survives differs between instructions. */
static inline void mtp_store_rows(float *out, __m256 sum)
{
    const __m256 nan = _mm256_cmp_ps(sum, sum, _CMP_UNORD_Q);
    const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    _mm256_store_ps(out, _mm256_blendv_ps(sum, quiet, nan));
}

static inline __m256i mtp_broadcast(const int32_t *word) { return _mm256_set1_epi32(*word); }

static inline __m256 mtp_broadcast_float(const int32_t *word)
{
    return _mm256_castsi256_ps(_mm256_set1_epi32(*word));
}

static inline __m256 mtp_load_halves(const uint16_t *halves)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)halves));
}

/* Half a line: four columns of eight rows. */
static inline __m256i mtp_load_codes(const void *half_line) { return _mm256_load_si256(half_line); }

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

/* Eight bytes as int32. */
static inline __m256i mtp_load_bytes(const uint8_t *bytes)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)bytes));
}

/* Codes of four bits with the fifth, which is bit 4 of `bits`. */
static inline __m256i mtp_add_fifth(__m256i codes, __m256i bits)
{
    return _mm256_or_si256(codes, _mm256_and_si256(bits, _mm256_set1_epi8(16)));
}

static inline __m256i mtp_look_up(__m256i codes, const int8_t values[16])
{
    const __m128i table = _mm_loadu_si128((const __m128i *)values);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
}

/* The multiply instruction takes unsigned times signed bytes: the sign of a weight moves to the
 * activation. Pairs are at most 2 * 128 * 127 = 32512, so int16 holds them. */
static inline __m256i mtp_add_signed(__m256i integers, __m256i weights, __m256i codes)
{
    const __m256i pairs =
        _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(codes, weights));
    return _mm256_add_epi32(integers, mtp_widen(pairs));
}

/* sum + scale * x_scale * integers, rounded after the product of the scales and at the end */
static inline __m256 mtp_add_block(__m256 sum, __m256i integers, __m256 scale, __m256 x_scale)
{
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(integers), _mm256_mul_ps(scale, x_scale), sum);
}

/* sum - min * x_scale * mins, likewise */
static inline __m256 mtp_take_mins(__m256 sum, __m256i mins, __m256 min, __m256 x_scale)
{
    return _mm256_fnmadd_ps(_mm256_cvtepi32_ps(mins), _mm256_mul_ps(min, x_scale), sum);
}

/* Run `eight_rows(type, n_tokens, first, count, group, n_blocks, row, words, out)` for the 32 rows
 * of a group, on at most four tokens of the tile at once: the accumulators of more would not fit.
 */
#define MTP_EIGHT_ROWS_AT_ONCE(name, type, eight_rows)                                             \
    MTP_ALWAYS_INLINE void name(const int n_tokens, const void *group, int64_t n_blocks,           \
                                const void *tile, float (*out)[32])                                \
    {                                                                                              \
        const int half = n_tokens < 4 ? n_tokens : 4;                                              \
        for (int row = 0; row < 32; row += 8) {                                                    \
            eight_rows(type, n_tokens, 0, half, group, n_blocks, row, tile, out);                  \
            if (n_tokens > half)                                                                   \
                eight_rows(type, n_tokens, half, n_tokens - half, group, n_blocks, row, tile,      \
                           out);                                                                   \
        }                                                                                          \
    }

#endif
