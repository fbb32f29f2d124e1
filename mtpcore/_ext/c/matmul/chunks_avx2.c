/* Q4_K, Q5_K and IQ4_XS: blocks of 256 columns in chunks of two sub-blocks of 32.
 *
 * The types share all but how codes and sub-scales are unpacked and how far int16 holds the sums of
 * their products.
 */
#include "matmul/kernels_avx2.h"

/* Of 16 rows, a byte each. */
typedef struct {
    __m128i scale[8], min[8];
} sub_scales;

MTP_ALWAYS_INLINE void unpack_sub_scales(const int type, const void *block, sub_scales *sub)
{
    if (type == MTP_IQ4_XS) {
        memcpy(sub->scale, ((const mtp_iq4_xs_block *)block)->sub_scale, sizeof sub->scale);
        return;
    }
    const mtp_six_bit_scales *six = block;
    const __m256i high_bits = _mm256_set1_epi8(0x30);
    MTP_UNROLL
    for (int c = 0; c < 4; c++) { /* two sub-blocks at a time */
        const __m256i low = _mm256_load_si256((const __m256i *)six->low[c]);
        const __m128i high = _mm_load_si128((const __m128i *)six->high[c]);
        const __m256i shifted = _mm256_sllv_epi32(_mm256_broadcastsi128_si256(high),
                                                  _mm256_setr_epi32(4, 4, 4, 4, 0, 0, 0, 0));
        const __m256i high_min = _mm256_srli_epi16(shifted, 2);
        _mm256_storeu_si256(
            (__m256i *)(sub->scale + 2 * c),
            _mm256_or_si256(mtp_low_nibbles(low), _mm256_and_si256(shifted, high_bits)));
        _mm256_storeu_si256(
            (__m256i *)(sub->min + 2 * c),
            _mm256_or_si256(mtp_high_nibbles(low), _mm256_and_si256(high_min, high_bits)));
    }
}

/* Codes of line j of sub-block `odd`; values of IQ4_XS. */
MTP_ALWAYS_INLINE __m256i unpack_codes(const int type, mtp_chunk chunk, const int odd, const int j,
                                       int r)
{
    const __m256i line = mtp_load_codes(chunk.code[j][r]);
    const __m256i codes = odd ? mtp_high_nibbles(line) : mtp_low_nibbles(line);
    if (type == MTP_IQ4_XS)
        return mtp_look_up(codes, mtp_iq4_values, 0);
    if (type == MTP_Q5_K) {
        const __m256i fifth = mtp_load_codes(chunk.fifth[j / 4][r]);
        return mtp_add_fifth(codes, odd ? _mm256_srli_epi16(fifth, j % 4)
                                        : _mm256_slli_epi16(fifth, 4 - j % 4));
    }
    return codes;
}

/* Lines whose products int16 can sum up: pairs of one are at most 2 * 15 * 127 = 3810 (Q4_K),
 * 2 * 31 * 127 = 7874 (Q5_K), 2 * 127 * 127 = 32258 (IQ4_XS). */
MTP_ALWAYS_INLINE int lines_in_pairs(const int type)
{
    return type == MTP_Q4_K ? 8 : type == MTP_Q5_K ? 4 : 1;
}

/* Add the products of sub-block `odd` of a chunk. */
MTP_ALWAYS_INLINE void multiply(const int type, const int n_tokens, mtp_chunk chunk, const int odd,
                                __m128i sub_scale, const int32_t *x, __m256i total[2][4])
{
    const int n = lines_in_pairs(type);
    __m256i pairs[2][4], scale[2];
    MTP_UNROLL
    for (int s = 0; s < 2; s++)
        scale[s] = mtp_pair_bytes(sub_scale, sub_scale, s);
    MTP_UNROLL
    for (int j = 0; j < 8; j++) {
        __m256i w[2], magnitude[2];
        MTP_UNROLL
        for (int s = 0; s < 2; s++) {
            w[s] = unpack_codes(type, chunk, odd, j, 8 * s);
            magnitude[s] = _mm256_abs_epi8(w[s]);
        }
        MTP_UNROLL
        for (int t = 0; t < n_tokens; t++) {
            const __m256i word = mtp_broadcast(x + j * n_tokens + t);
            MTP_UNROLL
            for (int s = 0; s < 2; s++) {
                const __m256i products =
                    type == MTP_IQ4_XS ? mtp_multiply_signed(w[s], magnitude[s], word)
                                       : _mm256_maddubs_epi16(w[s], word);
                pairs[s][t] = j % n == 0 ? products : _mm256_add_epi16(pairs[s][t], products);
                if (j % n == n - 1)
                    total[s][t] = mtp_add_pairs(total[s][t], pairs[s][t], scale[s]);
            }
        }
    }
}

MTP_ALWAYS_INLINE void add_block(const int type, const int n_tokens, const void *block, int row,
                                 const int32_t *words, float (*out)[32])
{
    const int part_bytes = (int)mtp_block256_bytes(type) / 4;
    __m256i total[2][4], mins[2][4];
    sub_scales sub;
    unpack_sub_scales(type, block, &sub);
    MTP_UNROLL
    for (int s = 0; s < 2; s++) {
        MTP_UNROLL
        for (int t = 0; t < n_tokens; t++)
            total[s][t] = mins[s][t] = _mm256_setzero_si256();
    }
    for (int c = 0; c < 4; c++) {
        const mtp_chunk chunk = mtp_chunk_of(type, block, c);
        const int32_t *x = words + 16 * c * n_tokens;
        mtp_fetch_ahead((const char *)block + c * part_bytes, part_bytes);
        multiply(type, n_tokens, chunk, 0, sub.scale[2 * c], x, total);
        multiply(type, n_tokens, chunk, 1, sub.scale[2 * c + 1], x + 8 * n_tokens, total);
    }
    for (int c = 0; c < 4 && mtp_block256_has_min(type); c++) {
        const int32_t *pair_sums = words + (MTP_ACT256_PAIR_SUM + c) * n_tokens;
        MTP_UNROLL
        for (int s = 0; s < 2; s++) {
            const __m256i pair = mtp_pair_bytes(sub.min[2 * c], sub.min[2 * c + 1], s);
            MTP_UNROLL
            for (int t = 0; t < n_tokens; t++)
                mins[s][t] = mtp_add_pairs(mins[s][t], pair, mtp_broadcast(pair_sums + t));
        }
    }
    mtp_add_block256(type, n_tokens, block, total, mins, row, words, out);
}

MTP_BLOCKS256(q4_k, MTP_Q4_K, add_block)
MTP_KERNELS_4(q4_k, avx2)
MTP_BLOCKS256(q5_k, MTP_Q5_K, add_block)
MTP_KERNELS_4(q5_k, avx2)
MTP_BLOCKS256(iq4_xs, MTP_IQ4_XS, add_block)
MTP_KERNELS_4(iq4_xs, avx2)
