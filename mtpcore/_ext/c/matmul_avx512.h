/* What the AVX-512 products share: a zmm register holds one number for each row of a group. */
#ifndef MTPCORE_MATMUL_AVX512_H
#define MTPCORE_MATMUL_AVX512_H

#include <immintrin.h>

#include "matmul_kernels.h"

#define MTP_UNROLL _Pragma("GCC unroll 8")

/* One NaN for all: which operand's payload survives differs between instructions. */
static inline void mtp_store_rows(float *out, __m512 sum)
{
    const __mmask16 nan = _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_set1_epi32(0x7fc00000);
    _mm512_store_ps(out, _mm512_mask_mov_ps(sum, nan, _mm512_castsi512_ps(quiet)));
}

static inline __m512i mtp_broadcast(const int32_t *word)
{
    return _mm512_set1_epi32(*word);
}

static inline __m512 mtp_broadcast_float(const int32_t *word)
{
    return _mm512_castsi512_ps(_mm512_set1_epi32(*word));
}

static inline __m512 mtp_load_halves(const uint16_t *halves)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)halves));
}

static inline __m512i mtp_load_line(const void *line)
{
    return _mm512_load_si512(line);
}

static inline __m512i mtp_low_nibbles(__m512i line)
{
    return _mm512_and_si512(line, _mm512_set1_epi8(15));
}

static inline __m512i mtp_high_nibbles(__m512i line)
{
    return _mm512_and_si512(_mm512_srli_epi16(line, 4), _mm512_set1_epi8(15));
}

/* sum + scale * x_scale * integers, rounded after the product of the scales and at the end */
static inline __m512 mtp_add_block(__m512 sum, __m512i integers, __m512 scale, __m512 x_scale)
{
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers), _mm512_mul_ps(scale, x_scale), sum);
}

#endif
