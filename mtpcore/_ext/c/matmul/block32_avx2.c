/* Types in blocks of 32 columns with one scale, and for some a min. */
#include "matmul/kernels_avx2.h"

enum { MOST_TOKENS = 4 }; /* at once: the sums of more, of 16 rows, would not fit the registers */

MTP_ALWAYS_INLINE __m256 load_scales(const int type, const uint16_t *scales)
{
    if (type != MTP_MXFP4)
        return mtp_load_halves(scales);
    const __m256i upper = _mm256_cvtepu16_epi32(_mm_load_si128((const __m128i *)scales));
    return _mm256_castsi256_ps(_mm256_slli_epi32(upper, 16));
}

MTP_ALWAYS_INLINE int is_signed(const int type) { return type == MTP_Q8_0 || type == MTP_IQ4_NL; }

/* What is added to codes of the other types to make them unsigned is 1 << this, if they have no
 * mins. */
MTP_ALWAYS_INLINE int offset_bits(const int type) { return type == MTP_Q4_0 ? 3 : 4; }

/* Lines whose products int16 can sum up: pairs of one are at most 2 * 15 * 127 = 3810, of Q5_0 and
 * Q5_1 2 * 31 * 127 = 7874, of MXFP4 2 * 28 * 127 = 7112. */
MTP_ALWAYS_INLINE int lines_in_pairs(const int type)
{
    return type == MTP_Q4_0 || type == MTP_Q4_1 ? 8 : 4;
}

/* Weights of columns 4j .. 4j + 3 of eight rows. */
MTP_ALWAYS_INLINE __m256i unpack_weights(const int type, const void *block, const int j,
                                         const int row)
{
    if (type == MTP_Q8_0)
        return _mm256_xor_si256(mtp_load_codes(((const mtp_q8_0_block *)block)->code[j][row]),
                                _mm256_set1_epi8(-128));
    const mtp_nibbles lines = mtp_nibbles_of(type, block);
    const int i = j % 4, high = j / 4;
    const __m256i line = mtp_load_codes(lines.code[i][row]);
    const __m256i codes = high ? mtp_high_nibbles(line) : mtp_low_nibbles(line);
    if (type == MTP_IQ4_NL)
        return mtp_look_up(codes, mtp_iq4_values, 0);
    if (type == MTP_MXFP4)
        return mtp_look_up(codes, mtp_mxfp4_values, 1 << offset_bits(type));
    if (type == MTP_Q5_0 || type == MTP_Q5_1) {
        const __m256i fifth = mtp_load_codes(lines.fifth[row]);
        return mtp_add_fifth(codes, high ? _mm256_srli_epi16(fifth, i)
                                         : _mm256_slli_epi16(fifth, 4 - i));
    }
    return codes;
}

/* The products of a block's n_sets times eight rows with some of a tile's tokens. */
MTP_ALWAYS_INLINE void multiply(const int type, const int n_tokens, const int count,
                                const int n_sets, const void *block, int row, const int32_t *x,
                                __m256i integers[][MOST_TOKENS])
{
    const int n = is_signed(type) ? 1 : lines_in_pairs(type);
    __m256i pairs[4][MOST_TOKENS];
    MTP_UNROLL
    for (int j = 0; j < 8; j++) {
        __m256i w[4], magnitude[4];
        MTP_UNROLL
        for (int s = 0; s < n_sets; s++) {
            w[s] = unpack_weights(type, block, j, row + 8 * s);
            magnitude[s] = _mm256_abs_epi8(w[s]);
        }
        MTP_UNROLL
        for (int t = 0; t < count; t++) {
            const __m256i word = mtp_broadcast(x + j * n_tokens + t);
            MTP_UNROLL
            for (int s = 0; s < n_sets; s++) {
                const __m256i products =
                    is_signed(type) ? mtp_multiply_signed(w[s], magnitude[s], word)
                                    : _mm256_maddubs_epi16(w[s], word);
                pairs[s][t] = j % n == 0 ? products : _mm256_add_epi16(pairs[s][t], products);
                if (j % n == n - 1) {
                    const __m256i wide = mtp_widen(pairs[s][t]);
                    integers[s][t] = j < n ? wide : _mm256_add_epi32(integers[s][t], wide);
                }
            }
        }
    }
}

/* Add a block's products of n_sets times eight rows with some of a tile's tokens to their sums. */
MTP_ALWAYS_INLINE void add_block(const int type, const int n_tokens, const int count,
                                 const int n_sets, const void *block, int row, const int32_t *x,
                                 float (*out)[32])
{
    const int32_t *minus_sums = x + MTP_ACT32_MINUS_SUM * n_tokens;
    const int has_min = mtp_block32_has_min(type), has_offset = !is_signed(type) && !has_min;
    __m256i integers[4][MOST_TOKENS];
    multiply(type, n_tokens, count, n_sets, block, row, x, integers);
    MTP_UNROLL
    for (int s = 0; s < n_sets; s++) {
        const uint16_t *scales = (const uint16_t *)block + row + 8 * s;
        const __m256 scale = load_scales(type, scales);
        const __m256 min = has_min ? mtp_load_halves(scales + 32) : scale;
        MTP_UNROLL
        for (int t = 0; t < count; t++) {
            const __m256 x_scale = mtp_broadcast_float(x + MTP_ACT32_SCALE * n_tokens + t);
            const __m256i minus_sum = mtp_broadcast(minus_sums + t);
            if (has_offset)
                integers[s][t] = _mm256_add_epi32(integers[s][t],
                                                  _mm256_slli_epi32(minus_sum, offset_bits(type)));
            float *sums = out[t] + row + 8 * s;
            __m256 sum = mtp_add_block(_mm256_load_ps(sums), integers[s][t], scale, x_scale);
            if (has_min)
                sum = mtp_take_mins(sum, minus_sum, min, x_scale);
            _mm256_store_ps(sums, sum);
        }
    }
}

MTP_ALWAYS_INLINE void block32(const int type, const int n_tokens, const void *group,
                                int64_t n_blocks, const void *tile, float (*out)[32])
{
    const int n_sets = n_tokens <= 2 ? 4 : 2; /* as many as have room in the registers */
    const char *block = group;
    const int32_t *words = tile;
    memset(out, 0, (size_t)n_tokens * sizeof *out);
    for (int64_t b = 0; b < n_blocks; b++) {
        mtp_fetch_ahead(block, (int)mtp_block32_bytes(type));
        for (int row = 0; row < 32; row += 8 * n_sets) {
            const int most = n_tokens < MOST_TOKENS ? n_tokens : MOST_TOKENS;
            add_block(type, n_tokens, most, n_sets, block, row, words, out);
            if (n_tokens > most)
                add_block(type, n_tokens, n_tokens - most, n_sets, block, row, words + most,
                             out + most);
        }
        block += mtp_block32_bytes(type);
        words += MTP_ACT32_WORDS * n_tokens;
    }
    mtp_finish(n_tokens, out);
}

#define BLOCK32_KERNEL(name, type)                                                                 \
    MTP_ALWAYS_INLINE void name(const int n_tokens, const void *group, int64_t n_blocks,           \
                                const void *tile, float (*out)[32])                                \
    {                                                                                              \
        block32(type, n_tokens, group, n_blocks, tile, out);                                      \
    }                                                                                              \
    MTP_KERNELS_8(name, avx2)

BLOCK32_KERNEL(q8_0, MTP_Q8_0)
BLOCK32_KERNEL(q4_0, MTP_Q4_0)
BLOCK32_KERNEL(q4_1, MTP_Q4_1)
BLOCK32_KERNEL(q5_0, MTP_Q5_0)
BLOCK32_KERNEL(q5_1, MTP_Q5_1)
BLOCK32_KERNEL(iq4_nl, MTP_IQ4_NL)
BLOCK32_KERNEL(mxfp4, MTP_MXFP4)
