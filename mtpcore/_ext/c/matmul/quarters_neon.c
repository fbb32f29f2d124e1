/* Q2_K, Q3_K and Q6_K: blocks of 256 columns in two halves of four quarters, a sub-scale for 16
 * columns. The types share all but how codes and sub-scales are unpacked.
 */
#include "matmul/kernels_neon.h"

/* Codes of line j of quarter `q` of half `h` in four rows, those of Q3_K and Q6_K too large by 4
 * and 32. */
MTP_ALWAYS_INLINE int8x16_t unpack_codes(const int type, const void *block, int h, const int q,
                                         const int j, int r)
{
    if (type == MTP_Q2_K) {
        const uint8x16_t line = mtp_load_codes(((const mtp_q2_k_block *)block)->code[h][j] + r);
        return vreinterpretq_s8_u8(vandq_u8(mtp_move_bits(line, 2 * q, 0), vdupq_n_u8(3)));
    }
    if (type == MTP_Q3_K) {
        const mtp_q3_k_block *q3 = block;
        const uint8x16_t line = mtp_load_codes(q3->pair[h][j / 2].code[j % 2] + r);
        const uint8x16_t third = mtp_load_codes(q3->pair[h][j / 2].third + r);
        const uint8x16_t low = vandq_u8(mtp_move_bits(line, 2 * q, 0), vdupq_n_u8(3));
        return vreinterpretq_s8_u8(mtp_take_bits(low, mtp_move_bits(third, 4 * (j % 2) + q, 2), 4));
    }
    const uint8_t (*lines)[16][4] = ((const mtp_q6_k_block *)block)->code[h][j];
    const uint8x16_t line = mtp_load_codes(lines[q % 2] + r);
    const uint8x16_t low = q < 2 ? mtp_low_nibbles(line) : mtp_high_nibbles(line);
    const uint8x16_t high = mtp_move_bits(mtp_load_codes(lines[2] + r), 2 * q, 4);
    return vreinterpretq_s8_u8(mtp_take_bits(low, high, 0x30));
}

MTP_ALWAYS_INLINE int8x8_t load_sub_scale(const int type, const void *block, int sub, int r)
{
    switch (type) {
    case MTP_Q2_K: {
        const uint8_t *bytes = ((const mtp_q2_k_block *)block)->sub_scale_min[sub] + r;
        return vreinterpret_s8_u8(vand_u8(vld1_u8(bytes), vdup_n_u8(15)));
    }
    case MTP_Q3_K:
        return vld1_s8(((const mtp_q3_k_block *)block)->sub_scale[sub] + r);
    default:
        return vld1_s8(((const mtp_q6_k_block *)block)->sub_scale[sub] + r);
    }
}

MTP_ALWAYS_INLINE int8x8_t load_sub_min(const mtp_q2_k_block *block, int sub, int r)
{
    return vreinterpret_s8_u8(vshr_n_u8(vld1_u8(block->sub_scale_min[sub] + r), 4));
}

/* Add the products of a half of quarter `q`, 16 columns, in eight rows, times its sub-scale. */
MTP_ALWAYS_INLINE void add_sub_block(const int type, const int n_tokens, const void *block, int h,
                                     const int q, const int first, int r, const int32_t *x,
                                     const int32_t *minus_sums, mtp_eight_numbers sub_scale,
                                     int32x4_t total[4][2])
{
    const int too_large = type == MTP_Q6_K ? 32 : type == MTP_Q3_K ? 4 : 0;
    int32x4_t integers[2][4];
    MTP_UNROLL
    for (int t = 0; t < n_tokens; t++)
        integers[0][t] = integers[1][t] =
            vdupq_n_s32(type == MTP_Q2_K ? 0 : minus_sums[t] * too_large);
    MTP_UNROLL
    for (int j = 0; j < 4; j++) {
        MTP_UNROLL
        for (int i = 0; i < 2; i++) {
            const int8x16_t w = unpack_codes(type, block, h, q, first + j, r + 4 * i);
            MTP_UNROLL
            for (int t = 0; t < n_tokens; t++)
                integers[i][t] = mtp_add_word(integers[i][t], w, x, j * n_tokens + t);
        }
    }
    MTP_UNROLL
    for (int t = 0; t < n_tokens; t++) {
        MTP_UNROLL
        for (int i = 0; i < 2; i++)
            total[t][i] = vmlaq_s32(total[t][i], integers[i][t], sub_scale.of[i]);
    }
}

MTP_ALWAYS_INLINE void quarters_eight_rows(const int type, const int n_tokens, const char *block,
                                           const int r, const int32_t *words, float32x4_t sum[2][4])
{
    const int32_t *x_scales = words + MTP_ACT256_SCALE * n_tokens;
    int32x4_t total[4][2], minus_mins[4][2];
    MTP_UNROLL
    for (int t = 0; t < n_tokens; t++)
        total[t][0] = total[t][1] = minus_mins[t][0] = minus_mins[t][1] = vdupq_n_s32(0);
    for (int h = 0; h < 2; h++) {
        MTP_UNROLL
        for (int s = 0; s < 8; s++) {
            const int sub = 8 * h + s;
            const int32_t *minus_sums = words + (MTP_ACT256_MINUS_SUM + sub) * n_tokens;
            add_sub_block(type, n_tokens, block, h, s / 2, 4 * (s % 2), r,
                          words + 4 * sub * n_tokens, minus_sums,
                          mtp_widen(load_sub_scale(type, block, sub, r)), total);
            MTP_UNROLL
            for (int t = 0; t < n_tokens; t++)
                if (type == MTP_Q2_K) /* sums of 16 codes fit the lower int16 */
                    mtp_add_products(minus_mins[t], load_sub_min((const void *)block, sub, r),
                                     minus_sums + t, 0);
        }
    }
    MTP_UNROLL
    for (int i = 0; i < 2; i++) {
        const uint16_t *halves = (const uint16_t *)block + r + 4 * i;
        const float32x4_t scale = type == MTP_Q2_K ? mtp_load_halves(halves)
                                                   : vld1q_f32((const float *)block + r + 4 * i);
        MTP_UNROLL
        for (int t = 0; t < n_tokens; t++) {
            const float x_scale = mtp_word_as_float(x_scales + t);
            sum[i][t] = mtp_add_block(sum[i][t], total[t][i], scale, x_scale);
            if (type == MTP_Q2_K)
                sum[i][t] = mtp_take_mins(sum[i][t], vnegq_s32(minus_mins[t][i]),
                                          mtp_load_halves(halves + 16), x_scale);
        }
    }
}

MTP_EIGHT_ROWS_AT_ONCE(q2_k, MTP_Q2_K, quarters_eight_rows)
MTP_KERNELS_4(q2_k, neon)
MTP_EIGHT_ROWS_AT_ONCE(q3_k, MTP_Q3_K, quarters_eight_rows)
MTP_KERNELS_4(q3_k, neon)
MTP_EIGHT_ROWS_AT_ONCE(q6_k, MTP_Q6_K, quarters_eight_rows)
MTP_KERNELS_4(q6_k, neon)
