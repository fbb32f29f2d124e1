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

MTP_ALWAYS_INLINE __m256i load_sub_scale(const int type, const void *block, int sub, int r)
{
    if (type == MTP_Q2_K)
        return mtp_low_nibbles(
            mtp_load_bytes(((const mtp_q2_k_block *)block)->sub_scale_min[sub] + r));
    const int8_t *sub_scale = type == MTP_Q3_K ? ((const mtp_q3_k_block *)block)->sub_scale[sub]
                                               : ((const mtp_q6_k_block *)block)->sub_scale[sub];
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(sub_scale + r)));
}

MTP_ALWAYS_INLINE __m256i load_sub_min(const mtp_q2_k_block *block, int sub, int r)
{
    return _mm256_srli_epi32(mtp_load_bytes(block->sub_scale_min[sub] + r), 4);
}

MTP_ALWAYS_INLINE void quarters_eight_rows(const int type, const int n_tokens, const int first,
                                           const int count, const void *group, int64_t n_blocks,
                                           int row, const int32_t *words, float (*out)[32])
{
    const char *block = (const char *)group + row / 16 * n_blocks * mtp_block256_bytes(type);
    const int r = row % 16;
    const int offset_bits = type == MTP_Q6_K ? 5 : 2; /* of Q6_K and Q3_K */
    __m256 sum[4];
    MTP_UNROLL
    for (int t = 0; t < count; t++)
        sum[t] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++) {
        const int32_t *x = words + first;
        __m256i total[4], minus_mins[4];
        if (r == 0 && first == 0) /* the first of those who read this */
            mtp_fetch_ahead(block, (int)mtp_block256_bytes(type));
        MTP_UNROLL
        for (int t = 0; t < count; t++)
            total[t] = minus_mins[t] = _mm256_setzero_si256();
        for (int h = 0; h < 2; h++) {
            MTP_UNROLL
            for (int s = 0; s < 8; s++) {
                const int q = s / 2, sub = 8 * h + s;
                const int32_t *minus_sums = x + (MTP_ACT256_MINUS_SUM + sub) * n_tokens;
                __m256i integers[4];
                MTP_UNROLL
                for (int t = 0; t < count; t++)
                    integers[t] =
                        type == MTP_Q2_K
                            ? _mm256_setzero_si256()
                            : _mm256_slli_epi32(mtp_broadcast(minus_sums + t), offset_bits);
                MTP_UNROLL
                for (int i = 0; i < 4; i += 2) {
                    const int j = 4 * (s % 2) + i;
                    const __m256i w0 = unpack_codes(type, block, h, q, j, r);
                    const __m256i w1 = unpack_codes(type, block, h, q, j + 1, r);
                    const int32_t *codes = x + (4 * sub + i) * n_tokens;
                    MTP_UNROLL
                    for (int t = 0; t < count; t++) {
                        /* two pairs are at most 2 * 2 * 63 * 127 = 32004 */
                        const __m256i pairs = _mm256_add_epi16(
                            _mm256_maddubs_epi16(w0, mtp_broadcast(codes + t)),
                            _mm256_maddubs_epi16(w1, mtp_broadcast(codes + n_tokens + t)));
                        integers[t] = _mm256_add_epi32(integers[t], mtp_widen(pairs));
                    }
                }
                const __m256i sub_scale = load_sub_scale(type, block, sub, r);
                MTP_UNROLL
                for (int t = 0; t < count; t++) {
                    total[t] =
                        _mm256_add_epi32(total[t], _mm256_mullo_epi32(integers[t], sub_scale));
                    if (type == MTP_Q2_K) /* sums of 16 codes fit the lower int16 */
                        minus_mins[t] = _mm256_add_epi32(
                            minus_mins[t],
                            _mm256_madd_epi16(load_sub_min((const void *)block, sub, r),
                                              mtp_broadcast(minus_sums + t)));
                }
            }
        }
        const __m256 scale = type == MTP_Q2_K ? mtp_load_halves((const uint16_t *)block + r)
                                              : _mm256_load_ps((const float *)block + r);
        MTP_UNROLL
        for (int t = 0; t < count; t++) {
            const __m256 x_scale = mtp_broadcast_float(x + MTP_ACT256_SCALE * n_tokens + t);
            sum[t] = mtp_add_block(sum[t], total[t], scale, x_scale);
            if (type == MTP_Q2_K) {
                const __m256 min = mtp_load_halves((const uint16_t *)block + 16 + r);
                const __m256i mins = _mm256_sub_epi32(_mm256_setzero_si256(), minus_mins[t]);
                sum[t] = mtp_take_mins(sum[t], mins, min, x_scale);
            }
        }
        block += mtp_block256_bytes(type);
        words += MTP_ACT256_WORDS * n_tokens;
    }
    MTP_UNROLL
    for (int t = 0; t < count; t++)
        mtp_store_rows(out[first + t] + row, sum[t]);
}

MTP_EIGHT_ROWS_AT_ONCE(q2_k, MTP_Q2_K, quarters_eight_rows)
MTP_KERNELS_4(q2_k, avx2)
MTP_EIGHT_ROWS_AT_ONCE(q3_k, MTP_Q3_K, quarters_eight_rows)
MTP_KERNELS_4(q3_k, avx2)
MTP_EIGHT_ROWS_AT_ONCE(q6_k, MTP_Q6_K, quarters_eight_rows)
MTP_KERNELS_4(q6_k, avx2)
