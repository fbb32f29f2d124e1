/* Types in blocks of 32 columns with one scale, and for some a min. */
#include "matmul/kernels_neon.h"

enum { MOST_IN_REGISTERS = 2 }; /* tokens whose sums of 32 rows are kept there */

MTP_ALWAYS_INLINE float32x4_t load_scales(const int type, const uint16_t *scales)
{
    if (type == MTP_MXFP4)
        return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(scales), 16));
    return mtp_load_halves(scales);
}

MTP_ALWAYS_INLINE int8x16_t signed_codes(const int type, uint8x16_t codes)
{
    if (type == MTP_IQ4_NL)
        return mtp_look_up(codes, mtp_iq4_values);
    if (type == MTP_MXFP4)
        return mtp_look_up(codes, mtp_mxfp4_values);
    return vreinterpretq_s8_u8(codes);
}

/* Codes of line j of the lower 16 columns and of the upper, in four rows. */
MTP_ALWAYS_INLINE void unpack_codes(const int type, mtp_nibbles lines, const int j, int row,
                                    int8x16_t codes[2])
{
    const uint8x16_t line = mtp_load_codes(lines.code[j] + row);
    uint8x16_t low = mtp_low_nibbles(line), high = mtp_high_nibbles(line);
    if (type == MTP_Q5_0 || type == MTP_Q5_1) {
        const uint8x16_t fifth = mtp_load_codes(lines.fifth + row);
        low = mtp_take_bits(low, mtp_move_bits(fifth, j, 4), 16);
        high = mtp_take_bits(high, mtp_move_bits(fifth, 4 + j, 4), 16);
    }
    codes[0] = signed_codes(type, low);
    codes[1] = signed_codes(type, high);
}

/* Add the products of a block in four rows to integers[t]. */
MTP_ALWAYS_INLINE void multiply(const int type, const int n_tokens, const void *block, int row,
                                const int32_t *x, int32x4_t integers[MTP_TILE])
{
    if (type == MTP_Q8_0) {
        MTP_UNROLL
        for (int j = 0; j < 8; j++) {
            const uint8x16_t line = mtp_load_codes(((const mtp_q8_0_block *)block)->code[j] + row);
            const int8x16_t w = vreinterpretq_s8_u8(veorq_u8(line, vdupq_n_u8(128)));
            MTP_UNROLL
            for (int t = 0; t < n_tokens; t++)
                integers[t] = mtp_add_word(integers[t], w, x, j * n_tokens + t);
        }
        return;
    }
    MTP_UNROLL
    for (int j = 0; j < 4; j++) {
        int8x16_t codes[2];
        unpack_codes(type, mtp_nibbles_of(type, block), j, row, codes);
        MTP_UNROLL
        for (int t = 0; t < n_tokens; t++) {
            integers[t] = mtp_add_word(integers[t], codes[0], x, j * n_tokens + t);
            integers[t] = mtp_add_word(integers[t], codes[1], x, (4 + j) * n_tokens + t);
        }
    }
}

/* Add what a block gives in four rows to sum[t]. */
MTP_ALWAYS_INLINE void add_four_rows(const int type, const int n_tokens, const void *block, int row,
                                     const int32_t *x, float32x4_t sum[MTP_TILE])
{
    const int32_t *minus_sums = x + MTP_ACT32_MINUS_SUM * n_tokens;
    const uint16_t *scales = (const uint16_t *)block + row;
    const float32x4_t scale = load_scales(type, scales);
    int32x4_t integers[MTP_TILE];
    MTP_UNROLL
    for (int t = 0; t < n_tokens; t++) {
        integers[t] = vdupq_n_s32(0);
        if (type == MTP_Q4_0 || type == MTP_Q5_0) /* codes + 8, codes + 16 */
            integers[t] = vdupq_n_s32(minus_sums[t] * (type == MTP_Q4_0 ? 8 : 16));
    }
    multiply(type, n_tokens, block, row, x, integers);
    MTP_UNROLL
    for (int t = 0; t < n_tokens; t++) {
        const float x_scale = mtp_word_as_float(x + MTP_ACT32_SCALE * n_tokens + t);
        sum[t] = mtp_add_block(sum[t], integers[t], scale, x_scale);
        if (mtp_block32_has_min(type))
            sum[t] = mtp_take_mins(sum[t], vdupq_n_s32(minus_sums[t]), mtp_load_halves(scales + 32),
                                   x_scale);
    }
}

MTP_ALWAYS_INLINE void block32(const int type, const int n_tokens, const void *group,
                               int64_t n_blocks, const void *tile, float (*out)[32])
{
    const char *block = group;
    const int32_t *words = tile;
    float32x4_t sum[8][MTP_TILE];
    for (int i = 0; i < 8; i++)
        for (int t = 0; t < n_tokens; t++)
            sum[i][t] = vdupq_n_f32(0);
    for (int64_t b = 0; b < n_blocks; b++) {
        mtp_fetch_ahead(block, (int)mtp_block32_bytes(type));
        if (n_tokens <= MOST_IN_REGISTERS) {
            MTP_UNROLL
            for (int i = 0; i < 8; i++)
                add_four_rows(type, n_tokens, block, 4 * i, words, sum[i]);
        } else {
            _Pragma("GCC unroll 1") for (int i = 0; i < 8; i++)
                add_four_rows(type, n_tokens, block, 4 * i, words, sum[i]);
        }
        block += mtp_block32_bytes(type);
        words += MTP_ACT32_WORDS * n_tokens;
    }
    for (int i = 0; i < 8; i++)
        for (int t = 0; t < n_tokens; t++)
            mtp_store_rows(out[t] + 4 * i, sum[i][t]);
}

#define BLOCK32_KERNELS(name, type)                                                                \
    MTP_ALWAYS_INLINE void name(const int n_tokens, const void *group, int64_t n_blocks,           \
                                const void *tile, float (*out)[32])                                \
    {                                                                                              \
        block32(type, n_tokens, group, n_blocks, tile, out);                                       \
    }                                                                                              \
    MTP_KERNELS_8(name, neon)

BLOCK32_KERNELS(q8_0, MTP_Q8_0)
BLOCK32_KERNELS(q4_0, MTP_Q4_0)
BLOCK32_KERNELS(q4_1, MTP_Q4_1)
BLOCK32_KERNELS(q5_0, MTP_Q5_0)
BLOCK32_KERNELS(q5_1, MTP_Q5_1)
BLOCK32_KERNELS(iq4_nl, MTP_IQ4_NL)
BLOCK32_KERNELS(mxfp4, MTP_MXFP4)
