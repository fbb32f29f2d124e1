/* Q8_0 and Q4_0: blocks of 32 columns with one scale.
 *
 * The multiply instruction wants unsigned weights, so codes are stored with an offset; an
 * accumulator that starts at minus offset times the sum of the activation codes takes it away.
 */
#include "matmul_avx512.h"

MTP_ALWAYS_INLINE void q8_0(const int n_tokens, const void *group, int64_t n_blocks,
                            const void *tile, float (*out)[32])
{
    const mtp_q8_0_block *block = group;
    const int32_t *words = tile;
    __m512 sum0[MTP_TILE], sum1[MTP_TILE];
    MTP_UNROLL for (int t = 0; t < n_tokens; t++)
        sum0[t] = sum1[t] = _mm512_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, block++, words += MTP_ACT32_WORDS * n_tokens) {
        __m512i integers0[MTP_TILE], integers1[MTP_TILE];
        MTP_UNROLL for (int t = 0; t < n_tokens; t++)
        {
            const int32_t *minus_sum = words + MTP_ACT32_MINUS_SUM * n_tokens + t;
            integers0[t] = integers1[t] = _mm512_slli_epi32(mtp_broadcast(minus_sum), 7);
        }
        MTP_UNROLL for (int j = 0; j < 8; j++)
        {
            const __m512i w0 = mtp_load_line(block->code[j]);
            const __m512i w1 = mtp_load_line(block->code[j] + 16);
            MTP_UNROLL for (int t = 0; t < n_tokens; t++)
            {
                const __m512i x = mtp_broadcast(words + j * n_tokens + t);
                integers0[t] = _mm512_dpbusd_epi32(integers0[t], w0, x);
                integers1[t] = _mm512_dpbusd_epi32(integers1[t], w1, x);
            }
        }
        const __m512 scale0 = mtp_load_halves(block->scale);
        const __m512 scale1 = mtp_load_halves(block->scale + 16);
        MTP_UNROLL for (int t = 0; t < n_tokens; t++)
        {
            const __m512 x_scale = mtp_broadcast_float(words + MTP_ACT32_SCALE * n_tokens + t);
            sum0[t] = mtp_add_block(sum0[t], integers0[t], scale0, x_scale);
            sum1[t] = mtp_add_block(sum1[t], integers1[t], scale1, x_scale);
        }
    }
    MTP_UNROLL for (int t = 0; t < n_tokens; t++)
    {
        mtp_store_rows(out[t], sum0[t]);
        mtp_store_rows(out[t] + 16, sum1[t]);
    }
}
MTP_PRODUCTS_8(q8_0, avx512)

MTP_ALWAYS_INLINE void q4_0(const int n_tokens, const void *group, int64_t n_blocks,
                            const void *tile, float (*out)[32])
{
    const mtp_q4_0_block *block = group;
    const int32_t *words = tile;
    __m512 sum0[MTP_TILE], sum1[MTP_TILE];
    MTP_UNROLL for (int t = 0; t < n_tokens; t++)
        sum0[t] = sum1[t] = _mm512_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, block++, words += MTP_ACT32_WORDS * n_tokens) {
        __m512i integers0[MTP_TILE], integers1[MTP_TILE];
        MTP_UNROLL for (int t = 0; t < n_tokens; t++)
        {
            const int32_t *minus_sum = words + MTP_ACT32_MINUS_SUM * n_tokens + t;
            integers0[t] = integers1[t] = _mm512_slli_epi32(mtp_broadcast(minus_sum), 3);
        }
        MTP_UNROLL for (int j = 0; j < 4; j++)
        {
            const __m512i line0 = mtp_load_line(block->code[j]);
            const __m512i line1 = mtp_load_line(block->code[j] + 16);
            const __m512i low0 = mtp_low_nibbles(line0), high0 = mtp_high_nibbles(line0);
            const __m512i low1 = mtp_low_nibbles(line1), high1 = mtp_high_nibbles(line1);
            MTP_UNROLL for (int t = 0; t < n_tokens; t++)
            {
                const __m512i x = mtp_broadcast(words + j * n_tokens + t);
                integers0[t] = _mm512_dpbusd_epi32(integers0[t], low0, x);
                integers1[t] = _mm512_dpbusd_epi32(integers1[t], low1, x);
            }
            MTP_UNROLL for (int t = 0; t < n_tokens; t++)
            {
                const __m512i x = mtp_broadcast(words + (4 + j) * n_tokens + t);
                integers0[t] = _mm512_dpbusd_epi32(integers0[t], high0, x);
                integers1[t] = _mm512_dpbusd_epi32(integers1[t], high1, x);
            }
        }
        const __m512 scale0 = mtp_load_halves(block->scale);
        const __m512 scale1 = mtp_load_halves(block->scale + 16);
        MTP_UNROLL for (int t = 0; t < n_tokens; t++)
        {
            const __m512 x_scale = mtp_broadcast_float(words + MTP_ACT32_SCALE * n_tokens + t);
            sum0[t] = mtp_add_block(sum0[t], integers0[t], scale0, x_scale);
            sum1[t] = mtp_add_block(sum1[t], integers1[t], scale1, x_scale);
        }
    }
    MTP_UNROLL for (int t = 0; t < n_tokens; t++)
    {
        mtp_store_rows(out[t], sum0[t]);
        mtp_store_rows(out[t] + 16, sum1[t]);
    }
}
MTP_PRODUCTS_8(q4_0, avx512)
