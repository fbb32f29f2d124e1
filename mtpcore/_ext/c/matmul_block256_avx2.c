/* Q4_K and Q6_K: blocks of 256 columns whose sub-blocks have integer scales. */
#include "matmul_avx2.h"

MTP_ALWAYS_INLINE __m256i load_bytes(const uint8_t *bytes)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)bytes));
}

/* The 6-bit scales of sub-block `odd` of chunk `c`. */
MTP_ALWAYS_INLINE __m256i q4_k_scale(const mtp_q4_k_block *block, int c, int odd, int r)
{
    const __m256i low = mtp_low_nibbles(load_bytes(block->low[c][odd] + r));
    const __m256i high = _mm256_srli_epi32(load_bytes(block->high[c] + r), 4 * odd);
    const __m256i two_bits = _mm256_and_si256(high, _mm256_set1_epi32(3));
    return _mm256_or_si256(low, _mm256_slli_epi32(two_bits, 4));
}

MTP_ALWAYS_INLINE __m256i q4_k_min(const mtp_q4_k_block *block, int c, int odd, int r)
{
    const __m256i low = _mm256_srli_epi32(load_bytes(block->low[c][odd] + r), 4);
    const __m256i high = _mm256_srli_epi32(load_bytes(block->high[c] + r), 4 * odd + 2);
    const __m256i two_bits = _mm256_and_si256(high, _mm256_set1_epi32(3));
    return _mm256_or_si256(low, _mm256_slli_epi32(two_bits, 4));
}

MTP_ALWAYS_INLINE void q4_k_eight_rows(const int n_tokens, const int first, const int count,
                                       const mtp_q4_k_block *blocks, int64_t n_blocks, int row,
                                       const int32_t *words, float (*out)[32])
{
    const mtp_q4_k_block *block = blocks + row / 16 * n_blocks;
    const int r = row % 16;
    __m256 sum[4];
    MTP_UNROLL for (int t = 0; t < count; t++)
        sum[t] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, block++, words += MTP_ACT256_WORDS * n_tokens) {
        const __m256 scale = mtp_load_halves(block->scale + r);
        const __m256 min = mtp_load_halves(block->min + r);
        const int32_t *x = words + first;
        __m256i total[4];
        MTP_UNROLL for (int t = 0; t < count; t++)
            total[t] = _mm256_setzero_si256();
        for (int c = 0; c < 4; c++)
            MTP_UNROLL for (int odd = 0; odd < 2; odd++)
            {
                __m256i pairs[4]; /* at most 8 * 2 * 15 * 127 = 30480 */
                MTP_UNROLL for (int t = 0; t < count; t++)
                    pairs[t] = _mm256_setzero_si256();
                MTP_UNROLL for (int j = 0; j < 8; j++)
                {
                    const __m256i line = mtp_load_codes(block->code[c][j][r]);
                    const __m256i w = odd ? mtp_high_nibbles(line) : mtp_low_nibbles(line);
                    const int32_t *codes = x + (16 * c + 8 * odd + j) * n_tokens;
                    MTP_UNROLL for (int t = 0; t < count; t++)
                        pairs[t] = _mm256_add_epi16(
                            pairs[t], _mm256_maddubs_epi16(w, mtp_broadcast(codes + t)));
                }
                const __m256i sub_scale = q4_k_scale(block, c, odd, r);
                MTP_UNROLL for (int t = 0; t < count; t++)
                    total[t] = _mm256_add_epi32(
                        total[t], _mm256_mullo_epi32(mtp_widen(pairs[t]), sub_scale));
            }
        MTP_UNROLL for (int t = 0; t < count; t++)
            sum[t] = mtp_add_block(sum[t], total[t], scale,
                                   mtp_broadcast_float(x + MTP_ACT256_SCALE * n_tokens + t));
        MTP_UNROLL for (int t = 0; t < count; t++)
            total[t] = _mm256_setzero_si256();
        for (int c = 0; c < 4; c++) {
            const __m256i odd_min = _mm256_slli_epi32(q4_k_min(block, c, 1, r), 16);
            const __m256i min_pair = _mm256_or_si256(q4_k_min(block, c, 0, r), odd_min);
            const int32_t *pair_sums = x + (MTP_ACT256_PAIR_SUM + c) * n_tokens;
            MTP_UNROLL for (int t = 0; t < count; t++)
                total[t] = _mm256_add_epi32(
                    total[t], _mm256_madd_epi16(min_pair, mtp_broadcast(pair_sums + t)));
        }
        MTP_UNROLL for (int t = 0; t < count; t++)
        {
            const __m256 x_scale = mtp_broadcast_float(x + MTP_ACT256_SCALE * n_tokens + t);
            sum[t] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(total[t]), _mm256_mul_ps(min, x_scale),
                                      sum[t]);
        }
    }
    MTP_UNROLL for (int t = 0; t < count; t++)
        mtp_store_rows(out[first + t] + row, sum[t]);
}
MTP_EIGHT_ROWS_AT_ONCE(q4_k, q4_k_eight_rows)
MTP_PRODUCTS_4(q4_k, avx2)

/* The 6-bit codes + 32 of quarter `q`. */
MTP_ALWAYS_INLINE __m256i q6_k_codes(const uint8_t (*lines)[16][4], const int q, int r)
{
    const __m256i line = mtp_load_codes(lines[q % 2][r]), upper = mtp_load_codes(lines[2][r]);
    const __m256i low = q < 2 ? mtp_low_nibbles(line) : mtp_high_nibbles(line);
    const __m256i high = q == 0   ? _mm256_slli_epi16(upper, 4)
                         : q == 1 ? _mm256_slli_epi16(upper, 2)
                         : q == 2 ? upper
                                  : _mm256_srli_epi16(upper, 2);
    return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
}

MTP_ALWAYS_INLINE void q6_k_eight_rows(const int n_tokens, const int first, const int count,
                                       const mtp_q6_k_block *blocks, int64_t n_blocks, int row,
                                       const int32_t *words, float (*out)[32])
{
    const mtp_q6_k_block *block = blocks + row / 16 * n_blocks;
    const int r = row % 16;
    __m256 sum[4];
    MTP_UNROLL for (int t = 0; t < count; t++)
        sum[t] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, block++, words += MTP_ACT256_WORDS * n_tokens) {
        const int32_t *x = words + first;
        __m256i total[4];
        MTP_UNROLL for (int t = 0; t < count; t++)
            total[t] = _mm256_setzero_si256();
        for (int h = 0; h < 2; h++)
            MTP_UNROLL for (int s = 0; s < 8; s++)
            {
                const int q = s / 2, sub = 8 * h + s;
                __m256i integers[4];
                MTP_UNROLL for (int t = 0; t < count; t++)
                {
                    const int32_t *minus_sum = x + (MTP_ACT256_MINUS_SUM + sub) * n_tokens + t;
                    integers[t] = _mm256_slli_epi32(mtp_broadcast(minus_sum), 5);
                }
                MTP_UNROLL for (int i = 0; i < 4; i += 2)
                {
                    const int j = 4 * (s % 2) + i;
                    const __m256i w0 = q6_k_codes(block->code[h][j], q, r);
                    const __m256i w1 = q6_k_codes(block->code[h][j + 1], q, r);
                    const int32_t *codes = x + (4 * sub + i) * n_tokens;
                    MTP_UNROLL for (int t = 0; t < count; t++)
                    {
                        /* two pairs are at most 2 * 2 * 63 * 127 = 32004 */
                        const __m256i pairs = _mm256_add_epi16(
                            _mm256_maddubs_epi16(w0, mtp_broadcast(codes + t)),
                            _mm256_maddubs_epi16(w1, mtp_broadcast(codes + n_tokens + t)));
                        integers[t] = _mm256_add_epi32(integers[t], mtp_widen(pairs));
                    }
                }
                const __m256i sub_scale = _mm256_cvtepi8_epi32(
                    _mm_loadl_epi64((const __m128i *)(block->sub_scale[sub] + r)));
                MTP_UNROLL for (int t = 0; t < count; t++)
                    total[t] =
                        _mm256_add_epi32(total[t], _mm256_mullo_epi32(integers[t], sub_scale));
            }
        const __m256 scale = _mm256_load_ps(block->scale + r);
        MTP_UNROLL for (int t = 0; t < count; t++)
            sum[t] = mtp_add_block(sum[t], total[t], scale,
                                   mtp_broadcast_float(x + MTP_ACT256_SCALE * n_tokens + t));
    }
    MTP_UNROLL for (int t = 0; t < count; t++)
        mtp_store_rows(out[first + t] + row, sum[t]);
}
MTP_EIGHT_ROWS_AT_ONCE(q6_k, q6_k_eight_rows)
MTP_PRODUCTS_4(q6_k, avx2)
