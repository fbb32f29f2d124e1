/* Q4_K, Q5_K and IQ4_XS: blocks of 256 columns in chunks of two sub-blocks of 32.
 *
 * The types share all but how codes and sub-scales are unpacked and how far int16 holds the sums of
 * their products.
 */
#include "matmul/kernels_avx2.h"

/* The lower bits of `low`, and above them the two lowest of `high`. */
MTP_ALWAYS_INLINE __m256i join_six_bits(__m256i low, __m256i high)
{
    const __m256i two_bits = _mm256_and_si256(high, _mm256_set1_epi32(3));
    return _mm256_or_si256(low, _mm256_slli_epi32(two_bits, 4));
}

/* The scales of sub-block `odd` of chunk `c`. */
MTP_ALWAYS_INLINE __m256i load_sub_scale(const int type, const void *block, int c, int odd, int r)
{
    if (type == MTP_IQ4_XS) {
        const int8_t *bytes = ((const mtp_iq4_xs_block *)block)->sub_scale[2 * c + odd] + r;
        return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)bytes));
    }
    const mtp_six_bit_scales *scales = block;
    return join_six_bits(mtp_low_nibbles(mtp_load_bytes(scales->low[c][odd] + r)),
                         _mm256_srli_epi32(mtp_load_bytes(scales->high[c] + r), 4 * odd));
}

MTP_ALWAYS_INLINE __m256i load_sub_min(const mtp_six_bit_scales *scales, int c, int odd, int r)
{
    return join_six_bits(_mm256_srli_epi32(mtp_load_bytes(scales->low[c][odd] + r), 4),
                         _mm256_srli_epi32(mtp_load_bytes(scales->high[c] + r), 4 * odd + 2));
}

/* Codes of line j of sub-block `odd`; values of IQ4_XS. */
MTP_ALWAYS_INLINE __m256i unpack_codes(const int type, mtp_chunk chunk, const int odd, const int j,
                                       int r)
{
    const __m256i line = mtp_load_codes(chunk.code[j][r]);
    const __m256i codes = odd ? mtp_high_nibbles(line) : mtp_low_nibbles(line);
    if (type == MTP_IQ4_XS)
        return mtp_look_up(codes, mtp_iq4_values);
    if (type == MTP_Q5_K) {
        const __m256i fifth = mtp_load_codes(chunk.fifth[j / 4][r]);
        return mtp_add_fifth(codes, odd ? _mm256_srli_epi16(fifth, j % 4)
                                        : _mm256_slli_epi16(fifth, 4 - j % 4));
    }
    return codes;
}

MTP_ALWAYS_INLINE void chunks_eight_rows(const int type, const int n_tokens, const int first,
                                         const int count, const void *group, int64_t n_blocks,
                                         int row, const int32_t *words, float (*out)[32])
{
    const char *block = (const char *)group + row / 16 * n_blocks * mtp_block256_bytes(type);
    const int r = row % 16;
    /* Pairs of a line are at most 2 * 15 * 127 = 3810 (Q4_K), 2 * 31 * 127 = 7874 (Q5_K). */
    const int lines_in_pairs = type == MTP_Q4_K ? 8 : 4;
    __m256 sum[4];
    MTP_UNROLL
    for (int t = 0; t < count; t++)
        sum[t] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++) {
        const int32_t *x = words + first;
        __m256i total[4], mins[4];
        if (r == 0 && first == 0) /* the first of those who read this */
            mtp_fetch_ahead(block, (int)mtp_block256_bytes(type));
        MTP_UNROLL
        for (int t = 0; t < count; t++)
            total[t] = mins[t] = _mm256_setzero_si256();
        for (int c = 0; c < 4; c++) {
            MTP_UNROLL
            for (int odd = 0; odd < 2; odd++) {
                const mtp_chunk chunk = mtp_chunk_of(type, block, c);
                __m256i integers[4], pairs[4];
                MTP_UNROLL
                for (int t = 0; t < count; t++)
                    integers[t] = pairs[t] = _mm256_setzero_si256();
                MTP_UNROLL
                for (int j = 0; j < 8; j++) {
                    const __m256i w = unpack_codes(type, chunk, odd, j, r);
                    const int32_t *codes = x + (16 * c + 8 * odd + j) * n_tokens;
                    if (type == MTP_IQ4_XS) {
                        MTP_UNROLL
                        for (int t = 0; t < count; t++)
                            integers[t] = mtp_add_signed(integers[t], w, mtp_broadcast(codes + t));
                        continue;
                    }
                    MTP_UNROLL
                    for (int t = 0; t < count; t++)
                        pairs[t] = _mm256_add_epi16(
                            pairs[t], _mm256_maddubs_epi16(w, mtp_broadcast(codes + t)));
                    if ((j + 1) % lines_in_pairs == 0) {
                        MTP_UNROLL
                        for (int t = 0; t < count; t++) {
                            integers[t] = _mm256_add_epi32(integers[t], mtp_widen(pairs[t]));
                            pairs[t] = _mm256_setzero_si256();
                        }
                    }
                }
                const __m256i sub_scale = load_sub_scale(type, block, c, odd, r);
                MTP_UNROLL
                for (int t = 0; t < count; t++)
                    total[t] =
                        _mm256_add_epi32(total[t], _mm256_mullo_epi32(integers[t], sub_scale));
            }
        }
        const __m256 scale = type == MTP_IQ4_XS ? _mm256_load_ps((const float *)block + r)
                                                : mtp_load_halves((const uint16_t *)block + r);
        MTP_UNROLL
        for (int t = 0; t < count; t++)
            sum[t] = mtp_add_block(sum[t], total[t], scale,
                                   mtp_broadcast_float(x + MTP_ACT256_SCALE * n_tokens + t));
        if (type != MTP_IQ4_XS) {
            for (int c = 0; c < 4; c++) {
                const __m256i even_min = load_sub_min((const void *)block, c, 0, r);
                const __m256i odd_min = load_sub_min((const void *)block, c, 1, r);
                const __m256i min_pair = _mm256_or_si256(even_min, _mm256_slli_epi32(odd_min, 16));
                const int32_t *pair_sums = x + (MTP_ACT256_PAIR_SUM + c) * n_tokens;
                MTP_UNROLL
                for (int t = 0; t < count; t++)
                    mins[t] = _mm256_add_epi32(
                        mins[t], _mm256_madd_epi16(min_pair, mtp_broadcast(pair_sums + t)));
            }
            const __m256 min = mtp_load_halves((const uint16_t *)block + 16 + r);
            MTP_UNROLL
            for (int t = 0; t < count; t++)
                sum[t] = mtp_take_mins(sum[t], mins[t], min,
                                       mtp_broadcast_float(x + MTP_ACT256_SCALE * n_tokens + t));
        }
        block += mtp_block256_bytes(type);
        words += MTP_ACT256_WORDS * n_tokens;
    }
    MTP_UNROLL
    for (int t = 0; t < count; t++)
        mtp_store_rows(out[first + t] + row, sum[t]);
}

MTP_EIGHT_ROWS_AT_ONCE(q4_k, MTP_Q4_K, chunks_eight_rows)
MTP_KERNELS_4(q4_k, avx2)
MTP_EIGHT_ROWS_AT_ONCE(q5_k, MTP_Q5_K, chunks_eight_rows)
MTP_KERNELS_4(q5_k, avx2)
MTP_EIGHT_ROWS_AT_ONCE(iq4_xs, MTP_IQ4_XS, chunks_eight_rows)
MTP_KERNELS_4(iq4_xs, avx2)
