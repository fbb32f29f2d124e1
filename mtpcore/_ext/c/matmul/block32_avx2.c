/* Types in blocks of 32 columns with one scale, and for some a min. */
#include "matmul/kernels_avx2.h"

MTP_ALWAYS_INLINE __m256 load_scales(const int type, const uint16_t *scales)
{
    if (type != MTP_MXFP4)
        return mtp_load_halves(scales);
    const __m256i upper = _mm256_cvtepu16_epi32(_mm_load_si128((const __m128i *)scales));
    return _mm256_castsi256_ps(_mm256_slli_epi32(upper, 16));
}

/* Products of the eight lines of Q8_0, whose weights are signed. */
MTP_ALWAYS_INLINE void multiply_bytes(const int n_tokens, const int count,
                                      const mtp_q8_0_block *block, int row, const int32_t *x,
                                      __m256i integers[4])
{
    const __m256i offset = _mm256_set1_epi8(-128);
    MTP_UNROLL
    for (int j = 0; j < 8; j++) {
        const __m256i w = _mm256_xor_si256(mtp_load_codes(block->code[j][row]), offset);
        MTP_UNROLL
        for (int t = 0; t < count; t++)
            integers[t] = mtp_add_signed(integers[t], w, mtp_broadcast(x + j * n_tokens + t));
    }
}

/* Products of the four lines of types whose nibbles are places in a table of signed values. */
MTP_ALWAYS_INLINE void multiply_values(const int n_tokens, const int count, const int8_t *values,
                                       mtp_nibbles lines, int row, const int32_t *x,
                                       __m256i integers[4])
{
    MTP_UNROLL
    for (int j = 0; j < 4; j++) {
        const __m256i line = mtp_load_codes(lines.code[j][row]);
        const __m256i low = mtp_look_up(mtp_low_nibbles(line), values);
        const __m256i high = mtp_look_up(mtp_high_nibbles(line), values);
        MTP_UNROLL
        for (int t = 0; t < count; t++) {
            const int32_t *codes = x + j * n_tokens + t;
            integers[t] = mtp_add_signed(integers[t], low, mtp_broadcast(codes));
            integers[t] = mtp_add_signed(integers[t], high, mtp_broadcast(codes + 4 * n_tokens));
        }
    }
}

/* Products of the four lines of types with unsigned codes of four or five bits. */
MTP_ALWAYS_INLINE void multiply_codes(const int type, const int n_tokens, const int count,
                                      mtp_nibbles lines, int row, const int32_t *x,
                                      __m256i integers[4])
{
    const int has_fifth = type == MTP_Q5_0 || type == MTP_Q5_1;
    /* Two pairs of each line add up to at most 2 * 2 * 15 * 127 = 7620, or 15748 with five bits. */
    const int lines_in_pairs = has_fifth ? 2 : 4;
    __m256i pairs[4];
    MTP_UNROLL
    for (int t = 0; t < count; t++)
        pairs[t] = _mm256_setzero_si256();
    MTP_UNROLL
    for (int j = 0; j < 4; j++) {
        const __m256i line = mtp_load_codes(lines.code[j][row]);
        __m256i low = mtp_low_nibbles(line), high = mtp_high_nibbles(line);
        if (has_fifth) {
            const __m256i fifth = mtp_load_codes(lines.fifth[row]);
            low = mtp_add_fifth(low, _mm256_slli_epi16(fifth, 4 - j));
            high = mtp_add_fifth(high, _mm256_srli_epi16(fifth, j));
        }
        MTP_UNROLL
        for (int t = 0; t < count; t++) {
            const __m256i x_low = mtp_broadcast(x + j * n_tokens + t);
            const __m256i x_high = mtp_broadcast(x + (4 + j) * n_tokens + t);
            pairs[t] = _mm256_add_epi16(pairs[t], _mm256_maddubs_epi16(low, x_low));
            pairs[t] = _mm256_add_epi16(pairs[t], _mm256_maddubs_epi16(high, x_high));
        }
        if ((j + 1) % lines_in_pairs == 0) {
            MTP_UNROLL
            for (int t = 0; t < count; t++) {
                integers[t] = _mm256_add_epi32(integers[t], mtp_widen(pairs[t]));
                pairs[t] = _mm256_setzero_si256();
            }
        }
    }
}

MTP_ALWAYS_INLINE void multiply(const int type, const int n_tokens, const int count,
                                const void *block, int row, const int32_t *x, __m256i integers[4])
{
    const mtp_nibbles lines = mtp_nibbles_of(type, block);
    if (type == MTP_Q8_0)
        multiply_bytes(n_tokens, count, block, row, x, integers);
    else if (type == MTP_IQ4_NL)
        multiply_values(n_tokens, count, mtp_iq4_values, lines, row, x, integers);
    else if (type == MTP_MXFP4)
        multiply_values(n_tokens, count, mtp_mxfp4_values, lines, row, x, integers);
    else
        multiply_codes(type, n_tokens, count, lines, row, x, integers);
}

MTP_ALWAYS_INLINE void eight_rows(const int type, const int n_tokens, const int first,
                                  const int count, const void *group, int64_t n_blocks, int row,
                                  const int32_t *words, float (*out)[32])
{
    const char *block = group;
    __m256 sum[4];
    MTP_UNROLL
    for (int t = 0; t < count; t++)
        sum[t] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++) {
        const int32_t *x = words + first, *minus_sums = x + MTP_ACT32_MINUS_SUM * n_tokens;
        const uint16_t *scales = (const uint16_t *)block + row;
        __m256i integers[4];
        if (row == 0 && first == 0) /* the first of those who read this */
            mtp_fetch_ahead(block, (int)mtp_block32_bytes(type));
        MTP_UNROLL
        for (int t = 0; t < count; t++) {
            integers[t] = _mm256_setzero_si256();
            if (type == MTP_Q4_0 || type == MTP_Q5_0) /* codes + 8, codes + 16 */
                integers[t] =
                    _mm256_slli_epi32(mtp_broadcast(minus_sums + t), type == MTP_Q4_0 ? 3 : 4);
        }
        multiply(type, n_tokens, count, block, row, x, integers);
        MTP_UNROLL
        for (int t = 0; t < count; t++) {
            const __m256 x_scale = mtp_broadcast_float(x + MTP_ACT32_SCALE * n_tokens + t);
            sum[t] = mtp_add_block(sum[t], integers[t], load_scales(type, scales), x_scale);
            if (mtp_block32_has_min(type))
                sum[t] = mtp_take_mins(sum[t], mtp_broadcast(minus_sums + t),
                                       mtp_load_halves(scales + 32), x_scale);
        }
        block += mtp_block32_bytes(type);
        words += MTP_ACT32_WORDS * n_tokens;
    }
    MTP_UNROLL
    for (int t = 0; t < count; t++)
        mtp_store_rows(out[first + t] + row, sum[t]);
}

MTP_EIGHT_ROWS_AT_ONCE(q8_0, MTP_Q8_0, eight_rows)
MTP_KERNELS_8(q8_0, avx2)
MTP_EIGHT_ROWS_AT_ONCE(q4_0, MTP_Q4_0, eight_rows)
MTP_KERNELS_8(q4_0, avx2)
MTP_EIGHT_ROWS_AT_ONCE(q4_1, MTP_Q4_1, eight_rows)
MTP_KERNELS_8(q4_1, avx2)
MTP_EIGHT_ROWS_AT_ONCE(q5_0, MTP_Q5_0, eight_rows)
MTP_KERNELS_8(q5_0, avx2)
MTP_EIGHT_ROWS_AT_ONCE(q5_1, MTP_Q5_1, eight_rows)
MTP_KERNELS_8(q5_1, avx2)
MTP_EIGHT_ROWS_AT_ONCE(iq4_nl, MTP_IQ4_NL, eight_rows)
MTP_KERNELS_8(iq4_nl, avx2)
MTP_EIGHT_ROWS_AT_ONCE(mxfp4, MTP_MXFP4, eight_rows)
MTP_KERNELS_8(mxfp4, avx2)
