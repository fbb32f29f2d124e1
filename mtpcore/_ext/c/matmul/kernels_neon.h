/* What the NEON kernels share: a register holds one number for each of four rows.
 *
 * A block is worked off for a few rows at a time, so many that their sums of whole numbers fit the
 * registers; the sums of all blocks so far lie in the first-level cache where there is no room for
 * them as well. So the weights are one ascending stream for any number of tokens.
 */
#ifndef MTPCORE_MATMUL_NEON_H
#define MTPCORE_MATMUL_NEON_H

#include <arm_neon.h>
#include <string.h>

#include "matmul/kernels.h"

/* One NaN for all: which operand's payload survives differs between instructions. */
MTP_ALWAYS_INLINE void mtp_store_rows(float *out, float32x4_t sum)
{
    const float32x4_t quiet = vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000));
    vst1q_f32(out, vbslq_f32(vceqq_f32(sum, sum), sum, quiet));
}

/* sum + codes * word i of the activations at x. They are loaded by fours, and the instruction says
 * which of four it takes, in a number that compilers want to see. */
MTP_ALWAYS_INLINE int32x4_t mtp_add_word(int32x4_t sum, int8x16_t codes, const int32_t *x,
                                         const int i)
{
    const int8x16_t four = vreinterpretq_s8_s32(vld1q_s32(x + i / 4 * 4));
    switch (i % 4) {
    case 0:
        return vdotq_laneq_s32(sum, codes, four, 0);
    case 1:
        return vdotq_laneq_s32(sum, codes, four, 1);
    case 2:
        return vdotq_laneq_s32(sum, codes, four, 2);
    default:
        return vdotq_laneq_s32(sum, codes, four, 3);
    }
}

MTP_ALWAYS_INLINE float mtp_word_as_float(const int32_t *word)
{
    return mtp_float_from_bits((uint32_t)*word);
}

MTP_ALWAYS_INLINE float32x4_t mtp_load_halves(const uint16_t *halves)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves)));
}

/* Four columns of four rows. */
MTP_ALWAYS_INLINE uint8x16_t mtp_load_codes(const uint8_t (*rows)[4]) { return vld1q_u8(rows[0]); }

MTP_ALWAYS_INLINE uint8x16_t mtp_low_nibbles(uint8x16_t codes)
{
    return vandq_u8(codes, vdupq_n_u8(15));
}

MTP_ALWAYS_INLINE uint8x16_t mtp_high_nibbles(uint8x16_t codes) { return vshrq_n_u8(codes, 4); }

/* Bit `from` of each byte, and those above it, moved to bit `to`; others are lost. */
MTP_ALWAYS_INLINE uint8x16_t mtp_move_bits(uint8x16_t bytes, const int from, const int to)
{
    return from < to ? bytes << (uint8_t)(to - from) : bytes >> (uint8_t)(from - to);
}

/* Codes with those bits of others that the mask says. */
MTP_ALWAYS_INLINE uint8x16_t mtp_take_bits(uint8x16_t codes, uint8x16_t bits, uint8_t mask)
{
    return vbslq_u8(vdupq_n_u8(mask), bits, codes);
}

MTP_ALWAYS_INLINE int8x16_t mtp_look_up(uint8x16_t codes, const int8_t values[16])
{
    return vqtbl1q_s8(vld1q_s8(values), codes);
}

/* sum + scale * x_scale * integers, rounded after the product of the scales and at the end */
MTP_ALWAYS_INLINE float32x4_t mtp_add_block(float32x4_t sum, int32x4_t integers, float32x4_t scale,
                                            float x_scale)
{
    return vfmaq_f32(sum, vcvtq_f32_s32(integers), vmulq_n_f32(scale, x_scale));
}

/* sum - min * x_scale * mins, likewise */
MTP_ALWAYS_INLINE float32x4_t mtp_take_mins(float32x4_t sum, int32x4_t mins, float32x4_t min,
                                            float x_scale)
{
    return vfmsq_f32(sum, vcvtq_f32_s32(mins), vmulq_n_f32(min, x_scale));
}

/* The bytes of eight rows as int32, four in a register. */
typedef struct {
    int32x4_t of[2];
} mtp_eight_numbers;

MTP_ALWAYS_INLINE mtp_eight_numbers mtp_widen(int8x8_t bytes)
{
    const int16x8_t wide = vmovl_s8(bytes);
    return (mtp_eight_numbers){{vmovl_s16(vget_low_s16(wide)), vmovl_high_s16(wide)}};
}

/* sums + bytes of eight rows * one of the two int16 of a word */
MTP_ALWAYS_INLINE void mtp_add_products(int32x4_t sums[2], int8x8_t bytes, const int32_t *word,
                                        const int upper)
{
    const int16x8_t wide = vmovl_s8(bytes);
    int16_t number;
    memcpy(&number, (const char *)word + 2 * upper, sizeof number);
    sums[0] = vmlal_n_s16(sums[0], vget_low_s16(wide), number);
    sums[1] = vmlal_high_n_s16(sums[1], wide, number);
}

/* Run `eight_rows(type, n_tokens, block, r, words, sum)` for all blocks of the halves of a group; sum
 * [register][token] is of eight rows. */
#define MTP_EIGHT_ROWS_AT_ONCE(name, type, eight_rows)                                             \
    MTP_ALWAYS_INLINE void name(const int n_tokens, const void *group, int64_t n_blocks,           \
                                const void *tile, float (*out)[32])                                \
    {                                                                                              \
        const char *block = group;                                                                 \
        for (int row = 0; row < 32; row += 16) {                                                   \
            const int32_t *words = tile;                                                           \
            float32x4_t sum[4][4];                                                                 \
            MTP_UNROLL                                                                             \
            for (int i = 0; i < 4 * n_tokens; i++)                                                 \
                sum[i / n_tokens][i % n_tokens] = vdupq_n_f32(0);                                  \
            for (int64_t b = 0; b < n_blocks; b++) {                                               \
                mtp_fetch_ahead(block, (int)mtp_block256_bytes(type));                             \
                eight_rows(type, n_tokens, block, 0, words, sum);                                  \
                eight_rows(type, n_tokens, block, 8, words, sum + 2);                              \
                block += mtp_block256_bytes(type);                                                 \
                words += MTP_ACT256_WORDS * n_tokens;                                              \
            }                                                                                      \
            MTP_UNROLL                                                                             \
            for (int i = 0; i < 4 * n_tokens; i++)                                                 \
                mtp_store_rows(out[i % n_tokens] + row + 4 * (i / n_tokens),                       \
                               sum[i / n_tokens][i % n_tokens]);                                   \
        }                                                                                          \
    }

#endif
