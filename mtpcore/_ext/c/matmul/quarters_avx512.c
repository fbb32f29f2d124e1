/* Q2_K, Q3_K and Q6_K: blocks of 256 columns in two halves of four quarters, a sub-scale for 16
 * columns.
 *
 * The types share all but how codes and sub-scales are unpacked. All sums inside a block are exact
 * integers. Sixteen rows at a time: with more, the accumulators of four tokens would not fit the
 * registers.
 */
#include "matmul/kernels_avx512.h"

MTP_ALWAYS_INLINE __m512i or_masked(__m512i codes, __m512i bits, int8_t mask)
{
    return _mm512_ternarylogic_epi32(codes, bits, _mm512_set1_epi8(mask), 0xf8);
}

MTP_ALWAYS_INLINE void unpack_two_bits(__m512i line, __m512i quarter[4])
{
    const __m512i lowest = _mm512_set1_epi8(3);
    quarter[0] = _mm512_and_si512(line, lowest);
    quarter[1] = _mm512_and_si512(_mm512_srli_epi16(line, 2), lowest);
    quarter[2] = _mm512_and_si512(_mm512_srli_epi16(line, 4), lowest);
    quarter[3] = _mm512_and_si512(_mm512_srli_epi16(line, 6), lowest);
}

/* The codes + 4 of four quarters: line j, and its third bits. */
MTP_ALWAYS_INLINE void unpack_q3_k(const mtp_q3_k_block *block, int h, const int j,
                                   __m512i quarter[4])
{
    const __m512i line = mtp_load_line(block->pair[h][j / 2].third);
    const __m512i third = j % 2 ? _mm512_srli_epi16(line, 4) : line;
    unpack_two_bits(mtp_load_line(block->pair[h][j / 2].code[j % 2]), quarter);
    quarter[0] = or_masked(quarter[0], _mm512_slli_epi16(third, 2), 4);
    quarter[1] = or_masked(quarter[1], _mm512_slli_epi16(third, 1), 4);
    quarter[2] = or_masked(quarter[2], third, 4);
    quarter[3] = or_masked(quarter[3], _mm512_srli_epi16(third, 1), 4);
}

/* The codes + 32 of four quarters from their three lines. */
MTP_ALWAYS_INLINE void unpack_q6_k(const uint8_t (*lines)[16][4], __m512i quarter[4])
{
    const __m512i line0 = mtp_load_line(lines[0]), line1 = mtp_load_line(lines[1]);
    const __m512i high = mtp_load_line(lines[2]);
    quarter[0] = or_masked(mtp_low_nibbles(line0), _mm512_slli_epi16(high, 4), 0x30);
    quarter[1] = or_masked(mtp_low_nibbles(line1), _mm512_slli_epi16(high, 2), 0x30);
    quarter[2] = or_masked(mtp_high_nibbles(line0), high, 0x30);
    quarter[3] = or_masked(mtp_high_nibbles(line1), _mm512_srli_epi16(high, 2), 0x30);
}

MTP_ALWAYS_INLINE void unpack_quarters(const int type, const void *block, int h, const int j,
                                       __m512i quarter[4])
{
    if (type == MTP_Q2_K)
        unpack_two_bits(mtp_load_line(((const mtp_q2_k_block *)block)->code[h][j]), quarter);
    else if (type == MTP_Q3_K)
        unpack_q3_k(block, h, j, quarter);
    else
        unpack_q6_k(((const mtp_q6_k_block *)block)->code[h][j], quarter);
}

MTP_ALWAYS_INLINE __m512i load_sub_scale(const int type, const void *block, int sub)
{
    if (type == MTP_Q2_K) {
        const uint8_t *both = ((const mtp_q2_k_block *)block)->sub_scale_min[sub];
        const __m128i bytes = _mm_load_si128((const __m128i *)both);
        return _mm512_cvtepu8_epi32(_mm_and_si128(bytes, _mm_set1_epi8(15)));
    }
    if (type == MTP_Q3_K) { /* the lower halves, as mtp_add_scaled wants them */
        const int8_t *sub_scale = ((const mtp_q3_k_block *)block)->sub_scale[sub];
        const __m128i bytes = _mm_load_si128((const __m128i *)sub_scale);
        return _mm512_cvtepu16_epi32(_mm256_cvtepi8_epi16(bytes));
    }
    const int8_t *sub_scale = ((const mtp_q6_k_block *)block)->sub_scale[sub];
    return _mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)sub_scale));
}

MTP_ALWAYS_INLINE __m512i load_sub_min(const mtp_q2_k_block *block, int sub)
{
    const __m128i both = _mm_load_si128((const __m128i *)block->sub_scale_min[sub]);
    return _mm512_srli_epi32(_mm512_cvtepu8_epi32(both), 4);
}

MTP_ALWAYS_INLINE void quarters_half(const int type, const int n_tokens, const char *block,
                                     int64_t n_blocks, int row, const int32_t *words,
                                     float (*out)[32])
{
    const int fits = type != MTP_Q6_K; /* sums are at most 16 * 127 times 3 (Q2_K) or 4 (Q3_K) */
    __m512 sum[4];
    MTP_UNROLL
    for (int t = 0; t < n_tokens; t++)
        sum[t] = _mm512_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++) {
        __m512i integers[4], minus_mins[4];
        MTP_UNROLL
        for (int t = 0; t < n_tokens; t++)
            integers[t] = minus_mins[t] = _mm512_setzero_si512();
        int32_t first[16 * 4];
        mtp_first_sums(type, 4, n_tokens, words, first);
        for (int s = 0; s < 4; s++) { /* half s / 2; columns 0-15 or 16-31 of its quarters */
            const int h = s / 2, sub0 = 8 * h + s % 2;
            __m512i sub_sum[4][4];
            const int part_bytes = (int)mtp_block256_bytes(type) / 4;
            mtp_fetch_ahead(block + s * part_bytes, part_bytes);
            MTP_UNROLL
            for (int q = 0; q < 4; q++) {
                MTP_UNROLL
                for (int t = 0; t < n_tokens; t++)
                    sub_sum[q][t] = mtp_first_sum(type, first + (sub0 + 2 * q) * n_tokens + t);
            }
            MTP_UNROLL
            for (int i = 0; i < 4; i++) {
                const int j = 4 * (s % 2) + i;
                const int32_t *x = words + (32 * h + j) * n_tokens;
                __m512i quarter[4];
                unpack_quarters(type, block, h, j, quarter);
                MTP_UNROLL
                for (int q = 0; q < 4; q++) {
                    MTP_UNROLL
                    for (int t = 0; t < n_tokens; t++)
                        sub_sum[q][t] = _mm512_dpbusd_epi32(
                            sub_sum[q][t], quarter[q], mtp_broadcast(x + 8 * q * n_tokens + t));
                }
            }
            MTP_UNROLL
            for (int q = 0; q < 4; q++) {
                const int sub = sub0 + 2 * q;
                const int32_t *minus_sums = words + (MTP_ACT256_MINUS_SUM + sub) * n_tokens;
                const __m512i sub_scale = load_sub_scale(type, block, sub);
                MTP_UNROLL
                for (int t = 0; t < n_tokens; t++) {
                    integers[t] = mtp_add_scaled(fits, integers[t], sub_sum[q][t], sub_scale);
                    if (type == MTP_Q2_K) /* sums of 16 codes fit the lower int16 */
                        minus_mins[t] = _mm512_dpwssd_epi32(minus_mins[t],
                                                            load_sub_min((const void *)block, sub),
                                                            mtp_broadcast(minus_sums + t));
                }
            }
        }
        MTP_UNROLL
        for (int t = 0; t < n_tokens; t++) {
            const __m512 x_scale = mtp_broadcast_float(words + MTP_ACT256_SCALE * n_tokens + t);
            if (type == MTP_Q2_K) {
                const __m512i mins = _mm512_sub_epi32(_mm512_setzero_si512(), minus_mins[t]);
                const __m512 scale = mtp_load_halves((const uint16_t *)block);
                const __m512 min = mtp_load_halves((const uint16_t *)block + 16);
                sum[t] = mtp_add_block(sum[t], integers[t], scale, x_scale);
                sum[t] = mtp_take_mins(sum[t], mins, min, x_scale);
            } else {
                const __m512 scale = _mm512_load_ps((const float *)block);
                sum[t] = mtp_add_block(sum[t], integers[t], scale, x_scale);
            }
        }
        block += mtp_block256_bytes(type);
        words += MTP_ACT256_WORDS * n_tokens;
    }
    MTP_UNROLL
    for (int t = 0; t < n_tokens; t++)
        mtp_store_rows(out[t] + row, sum[t]);
}

MTP_HALVES(q2_k, MTP_Q2_K, quarters_half)
MTP_KERNELS_4(q2_k, avx512)
MTP_HALVES(q3_k, MTP_Q3_K, quarters_half)
MTP_KERNELS_4(q3_k, avx512)
MTP_HALVES(q6_k, MTP_Q6_K, quarters_half)
MTP_KERNELS_4(q6_k, avx512)

/* Sub-scales and sub-mins of Q2_K, as pairs. */
MTP_ALWAYS_INLINE void unpack_sub_pairs(const mtp_q2_k_block *block, int row, mtp_unpacked *out)
{
    for (int i = 0; i < 8; i++) {
        const __m512i scales = mtp_pair(load_sub_scale(MTP_Q2_K, block, 2 * i),
                                        load_sub_scale(MTP_Q2_K, block, 2 * i + 1));
        const __m512i mins = mtp_pair(load_sub_min(block, 2 * i), load_sub_min(block, 2 * i + 1));
        _mm512_store_si512(out->sub_scale[i] + row, scales);
        _mm512_store_si512(out->sub_min[i] + row, mins);
    }
}

MTP_ALWAYS_INLINE void unpack(const int type, const void *group, int64_t n_blocks, int64_t b,
                              mtp_unpacked *out)
{
    for (int row = 0; row < 32; row += 16) {
        const int64_t place = b + (row ? n_blocks : 0);
        const char *block = (const char *)group + place * mtp_block256_bytes(type);
        for (int h = 0; h < 2; h++) {
            MTP_UNROLL
            for (int j = 0; j < 8; j++) {
                __m512i quarter[4];
                unpack_quarters(type, block, h, j, quarter);
                MTP_UNROLL
                for (int q = 0; q < 4; q++)
                    _mm512_store_si512(out->code[32 * h + 8 * q + j] + row, quarter[q]);
            }
        }
        if (type == MTP_Q2_K)
            unpack_sub_pairs((const void *)block, row, out);
        else
            for (int sub = 0; sub < 16; sub++)
                _mm512_store_si512(out->sub_scale[sub] + row, load_sub_scale(type, block, sub));
        mtp_unpack_scales(type, block, row, out);
    }
}

MTP_UNPACK(q2_k, MTP_Q2_K, unpack)
MTP_UNPACK(q3_k, MTP_Q3_K, unpack)
MTP_UNPACK(q6_k, MTP_Q6_K, unpack)
