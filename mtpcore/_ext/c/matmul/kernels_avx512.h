/* What the AVX-512 kernels share: a zmm register holds one number for each row of a group. */
#ifndef MTPCORE_MATMUL_AVX512_H
#define MTPCORE_MATMUL_AVX512_H

#include <immintrin.h>

#include "matmul/kernels.h"
#include "matmul/unpacked.h"

/* One NaN for all: which operand's payload survives differs between instructions. */
static inline void mtp_store_rows(float *out, __m512 sum)
{
    const __mmask16 nan = _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_set1_epi32(0x7fc00000);
    _mm512_store_ps(out, _mm512_mask_mov_ps(sum, nan, _mm512_castsi512_ps(quiet)));
}

static inline __m512i mtp_broadcast(const int32_t *word) { return _mm512_set1_epi32(*word); }

/* sum + codes * a word of activations, in one instruction with the word's broadcast, where each is
 * used but once: what limits a matmul of few tokens is how many instructions a core takes in. */
static inline __m512i mtp_add_word(__m512i sum, __m512i codes, const int32_t *word)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*word));
    return sum;
}

static inline __m512 mtp_broadcast_float(const int32_t *word)
{
    return _mm512_castsi512_ps(_mm512_set1_epi32(*word));
}

static inline __m512 mtp_load_halves(const uint16_t *halves)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)halves));
}

static inline __m512i mtp_load_line(const void *line) { return _mm512_load_si512(line); }

static inline __m512i mtp_low_nibbles(__m512i line)
{
    return _mm512_and_si512(line, _mm512_set1_epi8(15));
}

static inline __m512i mtp_high_nibbles(__m512i line)
{
    return _mm512_and_si512(_mm512_srli_epi16(line, 4), _mm512_set1_epi8(15));
}

/* Codes of four bits with the fifth, which is bit 4 of `bits`. */
static inline __m512i mtp_add_fifth(__m512i codes, __m512i bits)
{
    enum { OR_MASKED = 0xf8 }; /* first | (second & third) */
    return _mm512_ternarylogic_epi32(codes, bits, _mm512_set1_epi8(16), OR_MASKED);
}

/* Values + offset four times over: whatever bits 4 and 5 of an index are, it finds its value. */
static inline __m512i mtp_offset_table(const int8_t values[16], int offset)
{
    const __m512i four = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)values));
    return _mm512_add_epi8(four, _mm512_set1_epi8((char)offset));
}

static inline __m512i mtp_look_up_low(__m512i line, __m512i table)
{
    return _mm512_permutexvar_epi8(line, table);
}

static inline __m512i mtp_look_up_high(__m512i line, __m512i table)
{
    return _mm512_permutexvar_epi8(_mm512_srli_epi16(line, 4), table);
}

/* sum + scale * x_scale * integers, rounded after the product of the scales and at the end */
static inline __m512 mtp_add_block(__m512 sum, __m512i integers, __m512 scale, __m512 x_scale)
{
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers), _mm512_mul_ps(scale, x_scale), sum);
}

/* sum - min * x_scale * mins, likewise */
static inline __m512 mtp_take_mins(__m512 sum, __m512i mins, __m512 min, __m512 x_scale)
{
    return _mm512_fnmadd_ps(_mm512_cvtepi32_ps(mins), _mm512_mul_ps(min, x_scale), sum);
}

/* What unsigned codes are taken to be too large by. To those of Q4_K it is added again, for a whole
 * block at a time. */
MTP_ALWAYS_INLINE int mtp_too_large(const int type)
{
    switch (type) {
    case MTP_Q3_K:
        return 4;
    case MTP_Q4_K:
        return 8;
    case MTP_Q6_K:
        return 32;
    default:
        return 0;
    }
}

/* What sums of 4 or 8 words of columns begin with, for all of a block and its tokens. */
MTP_ALWAYS_INLINE void mtp_first_sums(const int type, const int n_words, const int n_tokens,
                                      const int32_t *words, int32_t *first)
{
    const int32_t *sums = words + MTP_ACT256_MINUS_SUM * n_tokens; /* of 4 words */
    if (n_words == 4)
        for (int i = 0; i < 16 * n_tokens; i++)
            first[i] = mtp_too_large(type) * sums[i];
    else
        for (int k = 0; k < 8; k++, sums += 2 * n_tokens)
            for (int t = 0; t < n_tokens; t++)
                first[k * n_tokens + t] = mtp_too_large(type) * (sums[t] + sums[n_tokens + t]);
}

MTP_ALWAYS_INLINE __m512i mtp_first_sum(const int type, const int32_t *first)
{
    return mtp_too_large(type) ? mtp_broadcast(first) : _mm512_setzero_si512();
}

/* total + integers * scale. Where the integers fit int16 the upper half of a scale is zero, and one
 * instruction does what takes three. */
static inline __m512i mtp_add_scaled(const int fits_int16, __m512i total, __m512i integers,
                                     __m512i scale)
{
    if (fits_int16)
        return _mm512_dpwssd_epi32(total, integers, scale);
    return _mm512_add_epi32(total, _mm512_mullo_epi32(integers, scale));
}

/* Numbers that fit int16, as pairs: `even` in the lower half of each, `odd` in the upper. */
static inline __m512i mtp_pair(__m512i even, __m512i odd)
{
    const __mmask32 odd_lanes = 0xaaaaaaaa;
    return _mm512_mask_mov_epi16(even, odd_lanes, _mm512_slli_epi32(odd, 16));
}

/* `half(type, n_tokens, block, n_blocks, row, words, out)` for both halves of a group. */
#define MTP_HALVES(name, type, half)                                                               \
    MTP_ALWAYS_INLINE void name(const int n_tokens, const void *group, int64_t n_blocks,           \
                                const void *tile, float (*out)[32])                                \
    {                                                                                              \
        const char *second = (const char *)group + n_blocks * mtp_block256_bytes(type);            \
        half(type, n_tokens, group, n_blocks, 0, tile, out);                                       \
        half(type, n_tokens, second, n_blocks, 16, tile, out);                                     \
    }

/* The scales of 16 rows, and mins if the type has them. */
static inline void mtp_unpack_scales(int type, const void *block, int row, mtp_unpacked *out)
{
    const uint16_t *halves = block;
    const int has_min = mtp_block256_has_min(type);
    _mm512_store_ps(out->scale + row, has_min ? mtp_load_halves(halves) : _mm512_load_ps(block));
    if (has_min)
        _mm512_store_ps(out->min + row, mtp_load_halves(halves + 16));
}

/* The unpacker of a type from `unpack(type, group, n_blocks, b, block)`. */
#define MTP_UNPACK(name, type, unpack)                                                             \
    void mtp_unpack_##name##_avx512(const void *group, int64_t n_blocks, int64_t b,                \
                                    mtp_unpacked *block)                                           \
    {                                                                                              \
        unpack(type, group, n_blocks, b, block);                                                   \
    }

#endif
