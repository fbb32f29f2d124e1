/* Q2_K, Q3_K and Q6_K: blocks of 256 columns in two halves of four quarters, a sub-scale for 16
 * columns. The types share all but how codes and sub-scales are unpacked.
 */
#include "matmul/kernels_avx2.h"

MTP_ALWAYS_INLINE __m256i or_masked(__m256i codes, __m256i bits, int8_t mask)
{
    return _mm256_or_si256(codes, _mm256_and_si256(bits, _mm256_set1_epi8(mask)));
}

/* Bit `from` of each byte, and those above it, moved to bit `to`; others are left over. */
MTP_ALWAYS_INLINE __m256i move_bits(__m256i line, const int from, const int to)
{
    return from < to ? _mm256_slli_epi16(line, to - from) : _mm256_srli_epi16(line, from - to);
}

/* Unsigned codes of line j of quarter `q` of half `h`. */
MTP_ALWAYS_INLINE __m256i unpack_codes(const int type, const void *block, int h, const int q,
                                       const int j, int r)
{
    const __m256i none = _mm256_setzero_si256();
    if (type == MTP_Q2_K) {
        const mtp_q2_k_block *q2 = block;
        return or_masked(none, move_bits(mtp_load_codes(q2->code[h][j][r]), 2 * q, 0), 3);
    }
    if (type == MTP_Q3_K) {
        const mtp_q3_k_block *q3 = block;
        const __m256i line = mtp_load_codes(q3->pair[h][j / 2].code[j % 2][r]);
        const __m256i third = mtp_load_codes(q3->pair[h][j / 2].third[r]);
        const __m256i low = or_masked(none, move_bits(line, 2 * q, 0), 3);
        return or_masked(low, move_bits(third, 4 * (j % 2) + q, 2), 4);
    }
    const uint8_t (*lines)[16][4] = ((const mtp_q6_k_block *)block)->code[h][j];
    const __m256i line = mtp_load_codes(lines[q % 2][r]);
    const __m256i low = q < 2 ? mtp_low_nibbles(line) : mtp_high_nibbles(line);
    return or_masked(low, move_bits(mtp_load_codes(lines[2][r]), 2 * q, 4), 0x30);
}

/* Of 16 rows, a byte each. */
MTP_ALWAYS_INLINE __m128i load_sub_scale(const int type, const void *block, int sub)
{
    const __m128i lowest = _mm_set1_epi8(15);
    switch (type) {
    case MTP_Q2_K:
        return _mm_and_si128(mtp_load_bytes(((const mtp_q2_k_block *)block)->sub_scale_min[sub]), lowest);
    case MTP_Q3_K:
        return mtp_load_bytes(((const mtp_q3_k_block *)block)->sub_scale[sub]);
    default: /* MTP_Q6_K */
        return mtp_load_bytes(((const mtp_q6_k_block *)block)->sub_scale[sub]);
    }
}

/* What is multiplied with the sums of activations: the scales of codes that are too large, or mins. */
MTP_ALWAYS_INLINE __m128i load_taken(const int type, const void *block, int sub)
{
    if (type != MTP_Q2_K)
        return load_sub_scale(type, block, sub);
    const __m128i both = mtp_load_bytes(((const mtp_q2_k_block *)block)->sub_scale_min[sub]);
    return _mm_and_si128(_mm_srli_epi16(both, 4), _mm_set1_epi8(15));
}

/* Lines whose products int16 can sum up: pairs of one are at most 2 * 3 * 127 = 762 (Q2_K),
 * 2 * 7 * 127 = 1778 (Q3_K), 2 * 63 * 127 = 16002 (Q6_K). */
MTP_ALWAYS_INLINE int lines_in_pairs(const int type) { return type == MTP_Q6_K ? 2 : 4; }

/* Add the products of sub-block `odd` of quarter q of half h. */
MTP_ALWAYS_INLINE void multiply(const int type, const int n_tokens, const void *block, int h,
                                const int q, const int odd, const int32_t *words,
                                __m256i total[2][4])
{
    const int n = lines_in_pairs(type), sub = 8 * h + 2 * q + odd;
    const __m128i sub_scale = load_sub_scale(type, block, sub);
    const int32_t *x = words + 4 * sub * n_tokens;
    __m256i pairs[2][4], scale[2];
    MTP_UNROLL
    for (int s = 0; s < 2; s++)
        scale[s] = mtp_pair_bytes(sub_scale, sub_scale, s);
    MTP_UNROLL
    for (int i = 0; i < 4; i++) {
        __m256i w[2];
        MTP_UNROLL
        for (int s = 0; s < 2; s++)
            w[s] = unpack_codes(type, block, h, q, 4 * odd + i, 8 * s);
        MTP_UNROLL
        for (int t = 0; t < n_tokens; t++) {
            const __m256i word = mtp_broadcast(x + i * n_tokens + t);
            MTP_UNROLL
            for (int s = 0; s < 2; s++) {
                const __m256i products = _mm256_maddubs_epi16(w[s], word);
                pairs[s][t] = i % n == 0 ? products : _mm256_add_epi16(pairs[s][t], products);
                if (i % n == n - 1)
                    total[s][t] = mtp_add_pairs(total[s][t], pairs[s][t], scale[s]);
            }
        }
    }
}

MTP_ALWAYS_INLINE void add_block(const int type, const int n_tokens, const void *block, int row,
                                 const int32_t *words, float (*out)[32])
{
    const int part_bytes = (int)mtp_block256_bytes(type) / 4;
    const int32_t *minus_sums = words + MTP_ACT256_MINUS_SUM * n_tokens;
    __m256i total[2][4], taken[2][4];
    MTP_UNROLL
    for (int s = 0; s < 2; s++) {
        MTP_UNROLL
        for (int t = 0; t < n_tokens; t++)
            total[s][t] = taken[s][t] = _mm256_setzero_si256();
    }
    for (int h = 0; h < 2; h++) {
        MTP_UNROLL
        for (int q = 0; q < 4; q++) {
            if (q % 2 == 0)
                mtp_fetch_ahead((const char *)block + (2 * h + q / 2) * part_bytes, part_bytes);
            multiply(type, n_tokens, block, h, q, 0, words, total);
            multiply(type, n_tokens, block, h, q, 1, words, total);
        }
    }
    for (int sub = 0; sub < 16; sub += 2) {
        const __m128i first = load_taken(type, block, sub);
        const __m128i second = load_taken(type, block, sub + 1);
        __m256i sums[4];
        MTP_UNROLL
        for (int t = 0; t < n_tokens; t++) /* of 16 codes, so they fit int16 */
            sums[t] = _mm256_blend_epi16(
                mtp_broadcast(minus_sums + sub * n_tokens + t),
                _mm256_slli_epi32(mtp_broadcast(minus_sums + (sub + 1) * n_tokens + t), 16), 0xaa);
        MTP_UNROLL
        for (int s = 0; s < 2; s++) {
            const __m256i pair = mtp_pair_bytes(first, second, s);
            MTP_UNROLL
            for (int t = 0; t < n_tokens; t++)
                taken[s][t] = mtp_add_pairs(taken[s][t], pair, sums[t]);
        }
    }
    MTP_UNROLL
    for (int s = 0; s < 2; s++) {
        MTP_UNROLL
        for (int t = 0; t < n_tokens; t++)
            if (type == MTP_Q2_K)
                taken[s][t] = _mm256_sub_epi32(_mm256_setzero_si256(), taken[s][t]);
            else /* codes + 4, codes + 32 */
                total[s][t] = _mm256_add_epi32(
                    total[s][t], _mm256_slli_epi32(taken[s][t], type == MTP_Q3_K ? 2 : 5));
    }
    mtp_add_block256(type, n_tokens, block, total, taken, row, words, out);
}

MTP_BLOCKS256(q2_k, MTP_Q2_K, add_block)
MTP_KERNELS_4(q2_k, avx2)
MTP_BLOCKS256(q3_k, MTP_Q3_K, add_block)
MTP_KERNELS_4(q3_k, avx2)
MTP_BLOCKS256(q6_k, MTP_Q6_K, add_block)
MTP_KERNELS_4(q6_k, avx2)
