/* Q4_K, Q5_K and IQ4_XS: blocks of 256 columns in chunks of two sub-blocks of 32.
 *
 * The types share all but how codes and sub-scales are unpacked. All sums inside a block are exact
 * integers.
 */
#include "matmul/kernels_neon.h"

/* The four lower bits of each byte of `low`, and above them the two lowest of `high`. */
MTP_ALWAYS_INLINE int8x8_t join_six_bits(uint8x8_t low, uint8x8_t high)
{
    const uint8x8_t upper = vand_u8(vshl_n_u8(high, 4), vdup_n_u8(0x30));
    return vreinterpret_s8_u8(vbsl_u8(vdup_n_u8(15), low, upper));
}

/* The scales of sub-block `odd` of chunk `c` in eight rows. */
MTP_ALWAYS_INLINE int8x8_t load_sub_scale(const int type, const void *block, int c, const int odd,
                                          int r)
{
    if (type == MTP_IQ4_XS)
        return vld1_s8(((const mtp_iq4_xs_block *)block)->sub_scale[2 * c + odd] + r);
    const mtp_six_bit_scales *scales = block;
    const uint8x8_t high = vld1_u8(scales->high[c] + r);
    return join_six_bits(vld1_u8(scales->low[c][odd] + r), odd ? vshr_n_u8(high, 4) : high);
}

MTP_ALWAYS_INLINE int8x8_t load_sub_min(const mtp_six_bit_scales *scales, int c, const int odd,
                                        int r)
{
    const uint8x8_t high = vld1_u8(scales->high[c] + r);
    return join_six_bits(vshr_n_u8(vld1_u8(scales->low[c][odd] + r), 4),
                         odd ? vshr_n_u8(high, 6) : vshr_n_u8(high, 2));
}

/* Codes, or values, of line j of the first sub-block and of the second, in four rows. */
MTP_ALWAYS_INLINE void unpack_codes(const int type, mtp_chunk chunk, const int j, int r,
                                    int8x16_t codes[2])
{
    const uint8x16_t line = mtp_load_codes(chunk.code[j] + r);
    uint8x16_t low = mtp_low_nibbles(line), high = mtp_high_nibbles(line);
    if (type == MTP_IQ4_XS) {
        codes[0] = mtp_look_up(low, mtp_iq4_values);
        codes[1] = mtp_look_up(high, mtp_iq4_values);
        return;
    }
    if (type == MTP_Q5_K) {
        const uint8x16_t fifth = mtp_load_codes(chunk.fifth[j / 4] + r);
        low = mtp_take_bits(low, mtp_move_bits(fifth, j % 4, 4), 16);
        high = mtp_take_bits(high, mtp_move_bits(fifth, 4 + j % 4, 4), 16);
    }
    codes[0] = vreinterpretq_s8_u8(low);
    codes[1] = vreinterpretq_s8_u8(high);
}

/* Add the products of a chunk in eight rows, times its sub-scales. */
MTP_ALWAYS_INLINE void add_chunk(const int type, const int n_tokens, const void *block, int c,
                                 int r, const int32_t *x, int32x4_t total[4][2])
{
    const mtp_chunk chunk = mtp_chunk_of(type, block, c);
    const mtp_eight_numbers even_scale = mtp_widen(load_sub_scale(type, block, c, 0, r));
    const mtp_eight_numbers odd_scale = mtp_widen(load_sub_scale(type, block, c, 1, r));
    int32x4_t even[2][4], odd[2][4];
    MTP_UNROLL
    for (int t = 0; t < n_tokens; t++)
        even[0][t] = even[1][t] = odd[0][t] = odd[1][t] = vdupq_n_s32(0);
    MTP_UNROLL
    for (int j = 0; j < 8; j++) {
        MTP_UNROLL
        for (int i = 0; i < 2; i++) {
            int8x16_t codes[2];
            unpack_codes(type, chunk, j, r + 4 * i, codes);
            MTP_UNROLL
            for (int t = 0; t < n_tokens; t++) {
                even[i][t] = mtp_add_word(even[i][t], codes[0], x, j * n_tokens + t);
                odd[i][t] = mtp_add_word(odd[i][t], codes[1], x, (8 + j) * n_tokens + t);
            }
        }
    }
    MTP_UNROLL
    for (int t = 0; t < n_tokens; t++) {
        MTP_UNROLL
        for (int i = 0; i < 2; i++) {
            total[t][i] = vmlaq_s32(total[t][i], even[i][t], even_scale.of[i]);
            total[t][i] = vmlaq_s32(total[t][i], odd[i][t], odd_scale.of[i]);
        }
    }
}

MTP_ALWAYS_INLINE void chunks_eight_rows(const int type, const int n_tokens, const char *block,
                                         const int r, const int32_t *words, float32x4_t sum[2][4])
{
    const int32_t *x_scales = words + MTP_ACT256_SCALE * n_tokens;
    int32x4_t total[4][2], mins[4][2];
    MTP_UNROLL
    for (int t = 0; t < n_tokens; t++)
        total[t][0] = total[t][1] = mins[t][0] = mins[t][1] = vdupq_n_s32(0);
    for (int c = 0; c < 4; c++)
        add_chunk(type, n_tokens, block, c, r, words + 16 * c * n_tokens, total);
    for (int c = 0; type != MTP_IQ4_XS && c < 4; c++) {
        const int8x8_t even_min = load_sub_min((const void *)block, c, 0, r);
        const int8x8_t odd_min = load_sub_min((const void *)block, c, 1, r);
        const int32_t *pair_sums = words + (MTP_ACT256_PAIR_SUM + c) * n_tokens;
        MTP_UNROLL
        for (int t = 0; t < n_tokens; t++) {
            mtp_add_products(mins[t], even_min, pair_sums + t, 0);
            mtp_add_products(mins[t], odd_min, pair_sums + t, 1);
        }
    }
    MTP_UNROLL
    for (int i = 0; i < 2; i++) {
        const uint16_t *halves = (const uint16_t *)block + r + 4 * i;
        const float32x4_t scale = type == MTP_IQ4_XS ? vld1q_f32((const float *)block + r + 4 * i)
                                                     : mtp_load_halves(halves);
        MTP_UNROLL
        for (int t = 0; t < n_tokens; t++) {
            const float x_scale = mtp_word_as_float(x_scales + t);
            sum[i][t] = mtp_add_block(sum[i][t], total[t][i], scale, x_scale);
            if (type != MTP_IQ4_XS)
                sum[i][t] =
                    mtp_take_mins(sum[i][t], mins[t][i], mtp_load_halves(halves + 16), x_scale);
        }
    }
}

MTP_EIGHT_ROWS_AT_ONCE(q4_k, MTP_Q4_K, chunks_eight_rows)
MTP_KERNELS_4(q4_k, neon)
MTP_EIGHT_ROWS_AT_ONCE(q5_k, MTP_Q5_K, chunks_eight_rows)
MTP_KERNELS_4(q5_k, neon)
MTP_EIGHT_ROWS_AT_ONCE(iq4_xs, MTP_IQ4_XS, chunks_eight_rows)
MTP_KERNELS_4(iq4_xs, neon)
