/* Q4_K and Q6_K: blocks of 256 columns whose sub-blocks have integer scales.
 *
 * All sums inside a block are exact integers. Sixteen rows at a time: with more, the accumulators
 * of four tokens would not fit the registers.
 */
#include "matmul_avx512.h"

/* 6-bit scales and mins of the two sub-blocks of a chunk; the mins as pairs of int16. */
typedef struct {
    __m512i scale[2], min_pair;
} chunk_scales;

MTP_ALWAYS_INLINE chunk_scales unpack_scales(const mtp_q4_k_block *block, int c)
{
    const __m128i nibble = _mm_set1_epi8(15), upper = _mm_set1_epi8(0x30);
    const __m128i low0 = _mm_load_si128((const __m128i *)block->low[c][0]);
    const __m128i low1 = _mm_load_si128((const __m128i *)block->low[c][1]);
    const __m128i high = _mm_load_si128((const __m128i *)block->high[c]);
    const __m128i scale0 = _mm_or_si128(_mm_and_si128(low0, nibble),
                                        _mm_and_si128(_mm_slli_epi16(high, 4), upper));
    const __m128i min0 = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(low0, 4), nibble),
                                      _mm_and_si128(_mm_slli_epi16(high, 2), upper));
    const __m128i scale1 =
        _mm_or_si128(_mm_and_si128(low1, nibble), _mm_and_si128(high, upper));
    const __m128i min1 = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(low1, 4), nibble),
                                      _mm_and_si128(_mm_srli_epi16(high, 2), upper));
    const __m512i odd_min = _mm512_slli_epi32(_mm512_cvtepu8_epi32(min1), 16);
    return (chunk_scales){{_mm512_cvtepu8_epi32(scale0), _mm512_cvtepu8_epi32(scale1)},
                          _mm512_or_si512(_mm512_cvtepu8_epi32(min0), odd_min)};
}

MTP_ALWAYS_INLINE void q4_k_half(const int n_tokens, const mtp_q4_k_block *block,
                                  int64_t n_blocks, int row, const int32_t *words,
                                  float (*out)[32])
{
    __m512 sum[4];
    MTP_UNROLL for (int t = 0; t < n_tokens; t++)
        sum[t] = _mm512_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, block++, words += MTP_ACT256_WORDS * n_tokens) {
        __m512i integers[4], mins[4];
        MTP_UNROLL for (int t = 0; t < n_tokens; t++)
            integers[t] = mins[t] = _mm512_setzero_si512();
        MTP_UNROLL for (int c = 0; c < 4; c++)
        {
            const int32_t *x = words + 16 * c * n_tokens;
            const int32_t *pair_sums = words + (MTP_ACT256_PAIR_SUM + c) * n_tokens;
            const chunk_scales scales = unpack_scales(block, c);
            __m512i low_sum[4], high_sum[4];
            MTP_UNROLL for (int t = 0; t < n_tokens; t++)
                low_sum[t] = high_sum[t] = _mm512_setzero_si512();
            MTP_UNROLL for (int j = 0; j < 8; j++)
            {
                const __m512i line = mtp_load_line(block->code[c][j]);
                const __m512i low = mtp_low_nibbles(line), high = mtp_high_nibbles(line);
                MTP_UNROLL for (int t = 0; t < n_tokens; t++)
                {
                    const __m512i x_low = mtp_broadcast(x + j * n_tokens + t);
                    const __m512i x_high = mtp_broadcast(x + (8 + j) * n_tokens + t);
                    low_sum[t] = _mm512_dpbusd_epi32(low_sum[t], low, x_low);
                    high_sum[t] = _mm512_dpbusd_epi32(high_sum[t], high, x_high);
                }
            }
            MTP_UNROLL for (int t = 0; t < n_tokens; t++)
            {
                const __m512i low = _mm512_mullo_epi32(low_sum[t], scales.scale[0]);
                const __m512i high = _mm512_mullo_epi32(high_sum[t], scales.scale[1]);
                integers[t] = _mm512_add_epi32(integers[t], _mm512_add_epi32(low, high));
                mins[t] = _mm512_dpwssd_epi32(mins[t], scales.min_pair,
                                              mtp_broadcast(pair_sums + t));
            }
        }
        const __m512 scale = mtp_load_halves(block->scale), min = mtp_load_halves(block->min);
        MTP_UNROLL for (int t = 0; t < n_tokens; t++)
        {
            const __m512 x_scale = mtp_broadcast_float(words + MTP_ACT256_SCALE * n_tokens + t);
            sum[t] = mtp_add_block(sum[t], integers[t], scale, x_scale);
            sum[t] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(mins[t]), _mm512_mul_ps(min, x_scale),
                                      sum[t]);
        }
    }
    MTP_UNROLL for (int t = 0; t < n_tokens; t++)
        mtp_store_rows(out[t] + row, sum[t]);
}

MTP_ALWAYS_INLINE void q4_k(const int n_tokens, const void *group, int64_t n_blocks,
                            const void *tile, float (*out)[32])
{
    const mtp_q4_k_block *blocks = group;
    q4_k_half(n_tokens, blocks, n_blocks, 0, tile, out);
    q4_k_half(n_tokens, blocks + n_blocks, n_blocks, 16, tile, out);
}
MTP_PRODUCTS_4(q4_k, avx512)

/* The 6-bit codes + 32 of four quarters from their three lines. */
MTP_ALWAYS_INLINE void unpack_quarters(const uint8_t (*lines)[16][4], __m512i quarter[4])
{
    const __m512i upper = _mm512_set1_epi8(0x30);
    const __m512i line0 = mtp_load_line(lines[0]), line1 = mtp_load_line(lines[1]);
    const __m512i high = mtp_load_line(lines[2]);
    const int or_masked = 0xf8; /* first | (second & third) */
    quarter[0] = _mm512_ternarylogic_epi32(mtp_low_nibbles(line0), _mm512_slli_epi16(high, 4),
                                           upper, or_masked);
    quarter[1] = _mm512_ternarylogic_epi32(mtp_low_nibbles(line1), _mm512_slli_epi16(high, 2),
                                           upper, or_masked);
    quarter[2] = _mm512_ternarylogic_epi32(mtp_high_nibbles(line0), high, upper, or_masked);
    quarter[3] = _mm512_ternarylogic_epi32(mtp_high_nibbles(line1), _mm512_srli_epi16(high, 2),
                                           upper, or_masked);
}

MTP_ALWAYS_INLINE void q6_k_half(const int n_tokens, const mtp_q6_k_block *block,
                                  int64_t n_blocks, int row, const int32_t *words,
                                  float (*out)[32])
{
    __m512 sum[4];
    MTP_UNROLL for (int t = 0; t < n_tokens; t++)
        sum[t] = _mm512_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, block++, words += MTP_ACT256_WORDS * n_tokens) {
        __m512i integers[4];
        MTP_UNROLL for (int t = 0; t < n_tokens; t++)
            integers[t] = _mm512_setzero_si512();
        for (int s = 0; s < 4; s++) { /* half s / 2; columns 0-15 or 16-31 of its quarters */
            const int h = s / 2, first = 8 * h + s % 2;
            __m512i sub_sum[4][4];
            MTP_UNROLL for (int q = 0; q < 4; q++)
            {
                const int sub = MTP_ACT256_MINUS_SUM + first + 2 * q;
                MTP_UNROLL for (int t = 0; t < n_tokens; t++)
                    sub_sum[q][t] = _mm512_slli_epi32(mtp_broadcast(words + sub * n_tokens + t), 5);
            }
            MTP_UNROLL for (int i = 0; i < 4; i++)
            {
                const int j = 4 * (s % 2) + i;
                const int32_t *x = words + (32 * h + j) * n_tokens;
                __m512i quarter[4];
                unpack_quarters(block->code[h][j], quarter);
                MTP_UNROLL for (int q = 0; q < 4; q++)
                {
                    MTP_UNROLL for (int t = 0; t < n_tokens; t++)
                        sub_sum[q][t] = _mm512_dpbusd_epi32(
                            sub_sum[q][t], quarter[q], mtp_broadcast(x + 8 * q * n_tokens + t));
                }
            }
            MTP_UNROLL for (int q = 0; q < 4; q++)
            {
                const __m512i sub_scale = _mm512_cvtepi8_epi32(
                    _mm_load_si128((const __m128i *)block->sub_scale[first + 2 * q]));
                MTP_UNROLL for (int t = 0; t < n_tokens; t++)
                    integers[t] = _mm512_add_epi32(
                        integers[t], _mm512_mullo_epi32(sub_sum[q][t], sub_scale));
            }
        }
        const __m512 scale = _mm512_load_ps(block->scale);
        MTP_UNROLL for (int t = 0; t < n_tokens; t++)
        {
            const __m512 x_scale = mtp_broadcast_float(words + MTP_ACT256_SCALE * n_tokens + t);
            sum[t] = mtp_add_block(sum[t], integers[t], scale, x_scale);
        }
    }
    MTP_UNROLL for (int t = 0; t < n_tokens; t++)
        mtp_store_rows(out[t] + row, sum[t]);
}

MTP_ALWAYS_INLINE void q6_k(const int n_tokens, const void *group, int64_t n_blocks,
                            const void *tile, float (*out)[32])
{
    const mtp_q6_k_block *blocks = group;
    q6_k_half(n_tokens, blocks, n_blocks, 0, tile, out);
    q6_k_half(n_tokens, blocks + n_blocks, n_blocks, 16, tile, out);
}
MTP_PRODUCTS_4(q6_k, avx512)
