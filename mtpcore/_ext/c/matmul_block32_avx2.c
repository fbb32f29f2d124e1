/* Q8_0 and Q4_0: blocks of 32 columns with one scale. */
#include "matmul_avx2.h"

/* The multiply instruction takes unsigned times signed bytes: the sign of a weight moves to the
 * activation. Pairs are at most 2 * 128 * 127 = 32512, so int16 holds them. */
MTP_ALWAYS_INLINE void q8_0_eight_rows(const int type, const int n_tokens, const int first,
                                       const int count, const mtp_q8_0_block *block,
                                       int64_t n_blocks, int row, const int32_t *words,
                                       float (*out)[32])
{
    (void)type;
    const __m256i offset = _mm256_set1_epi8(-128);
    __m256 sum[4];
    MTP_UNROLL for (int t = 0; t < count; t++)
        sum[t] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, block++, words += MTP_ACT32_WORDS * n_tokens) {
        const int32_t *x = words + first;
        __m256i integers[4];
        MTP_UNROLL for (int t = 0; t < count; t++)
            integers[t] = _mm256_setzero_si256();
        MTP_UNROLL for (int j = 0; j < 8; j++)
        {
            const __m256i w = _mm256_xor_si256(mtp_load_codes(block->code[j][row]), offset);
            const __m256i magnitude = _mm256_abs_epi8(w);
            MTP_UNROLL for (int t = 0; t < count; t++)
            {
                const __m256i codes = _mm256_sign_epi8(mtp_broadcast(x + j * n_tokens + t), w);
                const __m256i pairs = _mm256_maddubs_epi16(magnitude, codes);
                integers[t] = _mm256_add_epi32(integers[t], mtp_widen(pairs));
            }
        }
        const __m256 scale = mtp_load_halves(block->scale + row);
        MTP_UNROLL for (int t = 0; t < count; t++)
            sum[t] = mtp_add_block(sum[t], integers[t], scale,
                                   mtp_broadcast_float(x + MTP_ACT32_SCALE * n_tokens + t));
    }
    MTP_UNROLL for (int t = 0; t < count; t++)
        mtp_store_rows(out[first + t] + row, sum[t]);
}
MTP_EIGHT_ROWS_AT_ONCE(q8_0, MTP_Q8_0, q8_0_eight_rows)
MTP_PRODUCTS_8(q8_0, avx2)

/* Codes stay unsigned (code + 8); eight pairs are at most 8 * 2 * 15 * 127 = 30480. */
MTP_ALWAYS_INLINE void q4_0_eight_rows(const int type, const int n_tokens, const int first,
                                       const int count, const mtp_q4_0_block *block,
                                       int64_t n_blocks, int row, const int32_t *words,
                                       float (*out)[32])
{
    (void)type;
    __m256 sum[4];
    MTP_UNROLL for (int t = 0; t < count; t++)
        sum[t] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, block++, words += MTP_ACT32_WORDS * n_tokens) {
        const int32_t *x = words + first;
        __m256i pairs[4];
        MTP_UNROLL for (int t = 0; t < count; t++)
            pairs[t] = _mm256_setzero_si256();
        MTP_UNROLL for (int j = 0; j < 4; j++)
        {
            const __m256i codes = mtp_load_codes(block->code[j][row]);
            const __m256i low = mtp_low_nibbles(codes), high = mtp_high_nibbles(codes);
            MTP_UNROLL for (int t = 0; t < count; t++)
            {
                const __m256i x_low = mtp_broadcast(x + j * n_tokens + t);
                const __m256i x_high = mtp_broadcast(x + (4 + j) * n_tokens + t);
                pairs[t] = _mm256_add_epi16(pairs[t], _mm256_maddubs_epi16(low, x_low));
                pairs[t] = _mm256_add_epi16(pairs[t], _mm256_maddubs_epi16(high, x_high));
            }
        }
        const __m256 scale = mtp_load_halves(block->scale + row);
        MTP_UNROLL for (int t = 0; t < count; t++)
        {
            const int32_t *minus_sum = x + MTP_ACT32_MINUS_SUM * n_tokens + t;
            const __m256i offset = _mm256_slli_epi32(mtp_broadcast(minus_sum), 3);
            const __m256i integers = _mm256_add_epi32(offset, mtp_widen(pairs[t]));
            sum[t] = mtp_add_block(sum[t], integers, scale,
                                   mtp_broadcast_float(x + MTP_ACT32_SCALE * n_tokens + t));
        }
    }
    MTP_UNROLL for (int t = 0; t < count; t++)
        mtp_store_rows(out[first + t] + row, sum[t]);
}
MTP_EIGHT_ROWS_AT_ONCE(q4_0, MTP_Q4_0, q4_0_eight_rows)
MTP_PRODUCTS_8(q4_0, avx2)
