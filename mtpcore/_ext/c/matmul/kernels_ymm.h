/* What the kernels of AVX2 and AVX-VNNI share: a ymm register holds one number for each of eight rows.
 */
#ifndef MTPCORE_MATMUL_YMM_H
#define MTPCORE_MATMUL_YMM_H

#if defined(__GNUC__) && !defined(__clang__)
/* Else gcc adds products to each other before it adds them to their sum, or puts that off until the
 * sum is used; meanwhile they lie on the stack, since there are more than registers. */
#pragma GCC optimize("no-tree-ter", "no-tree-reassoc")
#endif

#include <immintrin.h>
#include <string.h>

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

/* Four columns of unsigned codes times signed activations are added to sums:
 *
 * with AVX2 in two instructions, to two int16 for each row, which hold few products;
 * with AVX-VNNI in one, to an int32.
 *
 * Whether and how sums are scaled by the int8 of a sub-block depends on that. */
#if defined(__AVXVNNI__)
enum { MTP_SUMS_ARE_INT32 = 1 };

static inline __m256i mtp_products(__m256i codes, __m256i x)
{
    return _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), codes, x);
}

static inline __m256i mtp_add_products(__m256i sums, __m256i codes, __m256i x)
{
    return _mm256_dpbusd_avx_epi32(sums, codes, x);
}

static inline __m256i mtp_widen(__m256i sums) { return sums; }

/* integers + the two products of each pair of int16 */
static inline __m256i mtp_add_pairs(__m256i integers, __m256i pairs, __m256i factors)
{
    return _mm256_dpwssd_avx_epi32(integers, pairs, factors);
}
#else
enum { MTP_SUMS_ARE_INT32 = 0 };

static inline __m256i mtp_products(__m256i codes, __m256i x)
{
    return _mm256_maddubs_epi16(codes, x);
}

static inline __m256i mtp_add_products(__m256i sums, __m256i codes, __m256i x)
{
    return _mm256_add_epi16(sums, mtp_products(codes, x));
}

static inline __m256i mtp_widen(__m256i sums)
{
    return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
}

/* integers + the two products of each pair of int16 */
static inline __m256i mtp_add_pairs(__m256i integers, __m256i pairs, __m256i factors)
{
    return _mm256_add_epi32(integers, _mm256_madd_epi16(pairs, factors));
}
#endif

static inline __m128i mtp_load_bytes(const void *bytes) { return _mm_load_si128(bytes); }

/* Bytes of two sub-blocks for 16 rows, as pairs of int16 for the eight of them that are set 0 or 1.
 */
static inline __m256i mtp_pair_bytes(__m128i first, __m128i second, const int set)
{
    return _mm256_cvtepi8_epi16(set ? _mm_unpackhi_epi8(first, second)
                                    : _mm_unpacklo_epi8(first, second));
}

/* Scales of 16 rows as mtp_add_scaled wants them for eight. */
MTP_ALWAYS_INLINE __m256i mtp_scales_of(__m128i bytes, const int fits_int16, const int set)
{
    if (!MTP_SUMS_ARE_INT32)
        return mtp_pair_bytes(bytes, bytes, set);
    const __m128i eight = set ? _mm_unpackhi_epi64(bytes, bytes) : bytes;
    const __m256i scales = _mm256_cvtepi8_epi32(eight);
    return fits_int16 ? _mm256_and_si256(scales, _mm256_set1_epi32(0xffff)) : scales;
}

/* integers + sums * scales. An int32 that fits int16 is multiplied as one, with zero above. */
MTP_ALWAYS_INLINE __m256i mtp_add_scaled(__m256i integers, __m256i sums, __m256i scales,
                                         const int fits_int16)
{
    if (MTP_SUMS_ARE_INT32 && !fits_int16)
        return _mm256_add_epi32(integers, _mm256_mullo_epi32(sums, scales));
    return mtp_add_pairs(integers, sums, scales);
}

/* Codes of four bits with the fifth, which is bit 4 of `bits`. */
static inline __m256i mtp_add_fifth(__m256i codes, __m256i bits)
{
    return _mm256_or_si256(codes, _mm256_and_si256(bits, _mm256_set1_epi8(16)));
}

/* Values + offset. */
static inline __m256i mtp_look_up(__m256i codes, const int8_t values[16], const int offset)
{
    const __m128i table = _mm_loadu_si128((const __m128i *)values);
    const __m128i shifted = _mm_add_epi8(table, _mm_set1_epi8((char)offset));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(shifted), codes);
}

/* Pairs of products of signed weights. The instruction multiplies unsigned with signed bytes: the
 * sign of a weight moves to the activation. They are at most 2 * 128 * 127 = 32512. */
static inline __m256i mtp_signed_products(__m256i weights, __m256i magnitudes, __m256i codes)
{
    return _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(codes, weights));
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

/* One NaN for all in the finished sums of a group. */
MTP_ALWAYS_INLINE void mtp_finish(const int n_tokens, float (*out)[32])
{
    for (int t = 0; t < n_tokens; t++) {
        MTP_UNROLL
        for (int row = 0; row < 32; row += 8)
            mtp_store_rows(out[t] + row, _mm256_load_ps(out[t] + row));
    }
}

#endif
