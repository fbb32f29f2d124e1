/* What the NEON kernels share.
 *
 * A block is worked off for a few rows at a time, so many that their sums of whole numbers fit the
 * registers; the sums of all blocks so far lie in the first-level cache where there is no room for
 * them as well. So the weights are one ascending stream for any number of tokens.
 *
 * Dot products of four bytes leave one number for each of four rows in a register. I8MM multiplies
 * eight columns of two rows with those of two tokens in one instruction, as many as two dot
 * products. Where that pays, tokens lie in pairs until the sums of all blocks are stored: a
 * register holds row 0 of the first token and of the second, then row 1 of both, and the next
 * register rows 2 and 3. Of an odd number of tokens the last is multiplied twice.
 */
#ifndef MTPCORE_MATMUL_NEON_H
#define MTPCORE_MATMUL_NEON_H

#include <arm_neon.h>
#include <string.h>

#include "matmul/kernels.h"

#if defined(__ARM_FEATURE_MATMUL_INT8)
enum { MTP_HAS_I8MM = 1 };
#else
enum { MTP_HAS_I8MM = 0 };
#endif

/* How many tokens, and whether a register holds two rows of two, not four rows of one. */
typedef struct {
    int n, in_pairs;
} mtp_tokens;

/* Registers with a number for each of four rows and the tokens. */
MTP_ALWAYS_INLINE int mtp_registers(const mtp_tokens tokens)
{
    return tokens.in_pairs ? (tokens.n + 1) / 2 * 2 : tokens.n;
}

/* Numbers of four rows as register i has them. */
MTP_ALWAYS_INLINE int32x4_t mtp_rows_of(const mtp_tokens tokens, int32x4_t rows, const int i)
{
    if (!tokens.in_pairs)
        return rows;
    return i % 2 ? vzip2q_s32(rows, rows) : vzip1q_s32(rows, rows);
}

MTP_ALWAYS_INLINE float32x4_t mtp_float_rows_of(const mtp_tokens tokens, float32x4_t rows,
                                                const int i)
{
    return vreinterpretq_f32_s32(mtp_rows_of(tokens, vreinterpretq_s32_f32(rows), i));
}

/* Two words, twice. */
MTP_ALWAYS_INLINE int32x4_t mtp_load_twice(const int32_t *words)
{
    const int32x2_t both = vld1_s32(words);
    return vcombine_s32(both, both);
}

/* Of a word for each token, those of register i. */
MTP_ALWAYS_INLINE int32x4_t mtp_words_of(const mtp_tokens tokens, const int32_t *words, const int i)
{
    if (!tokens.in_pairs)
        return vld1q_dup_s32(words + i);
    const int32_t *pair = words + i / 2 * 2;
    return i / 2 * 2 + 1 < tokens.n ? mtp_load_twice(pair) : vld1q_dup_s32(pair);
}

MTP_ALWAYS_INLINE float32x4_t mtp_floats_of(const mtp_tokens tokens, const int32_t *words,
                                            const int i)
{
    return vreinterpretq_f32_s32(mtp_words_of(tokens, words, i));
}

/* The sums of four rows to out[t][row], and one NaN for all: which operand's payload survives
 * differs between instructions. */
MTP_ALWAYS_INLINE void mtp_store_rows(float *out, float32x4_t sum)
{
    const float32x4_t quiet = vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000));
    vst1q_f32(out, vbslq_f32(vceqq_f32(sum, sum), sum, quiet));
}

MTP_ALWAYS_INLINE void mtp_store_sums(const mtp_tokens tokens, const float32x4_t *sums, int row,
                                      float (*out)[32])
{
    MTP_UNROLL
    for (int t = 0; t < tokens.n; t++) {
        const int first = t / 2 * 2;
        if (!tokens.in_pairs)
            mtp_store_rows(out[t] + row, sums[t]);
        else if (t % 2)
            mtp_store_rows(out[t] + row, vuzp2q_f32(sums[first], sums[first + 1]));
        else
            mtp_store_rows(out[t] + row, vuzp1q_f32(sums[first], sums[first + 1]));
    }
}

/* sum + codes * word i of the activations at x; codes above 127 where I8MM takes such. They are
 * loaded by fours, and the instruction says which of four it takes, in a number that compilers want
 * to see. */
MTP_ALWAYS_INLINE int32x4_t mtp_add_word(const int is_unsigned, int32x4_t sum, uint8x16_t codes,
                                         const int32_t *x, const int i)
{
    const int8x16_t four = vreinterpretq_s8_s32(vld1q_s32(x + i / 4 * 4));
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if (is_unsigned)
        switch (i % 4) {
        case 0:
            return vusdotq_laneq_s32(sum, codes, four, 0);
        case 1:
            return vusdotq_laneq_s32(sum, codes, four, 1);
        case 2:
            return vusdotq_laneq_s32(sum, codes, four, 2);
        default:
            return vusdotq_laneq_s32(sum, codes, four, 3);
        }
#endif
    (void)is_unsigned;
    const int8x16_t values = vreinterpretq_s8_u8(codes);
    switch (i % 4) {
    case 0:
        return vdotq_laneq_s32(sum, values, four, 0);
    case 1:
        return vdotq_laneq_s32(sum, values, four, 1);
    case 2:
        return vdotq_laneq_s32(sum, values, four, 2);
    default:
        return vdotq_laneq_s32(sum, values, four, 3);
    }
}

/* Codes of two lines in four rows: a line in each register, or in pairs the eight columns of two
 * rows in each. */
typedef struct {
    uint8x16_t of[2];
} mtp_two_lines;

MTP_ALWAYS_INLINE mtp_two_lines mtp_join_lines(const mtp_tokens tokens, uint8x16_t even,
                                               uint8x16_t odd)
{
    if (!tokens.in_pairs)
        return (mtp_two_lines){{even, odd}};
    const uint32x4_t a = vreinterpretq_u32_u8(even), b = vreinterpretq_u32_u8(odd);
    return (mtp_two_lines){
        {vreinterpretq_u8_u32(vzip1q_u32(a, b)), vreinterpretq_u8_u32(vzip2q_u32(a, b))}};
}

/* Rows `r` to r + 3 of both. */
MTP_ALWAYS_INLINE mtp_two_lines mtp_load_lines(const mtp_tokens tokens, const uint8_t (*even)[4],
                                               const uint8_t (*odd)[4], int r)
{
    return mtp_join_lines(tokens, vld1q_u8(even[r]), vld1q_u8(odd[r]));
}

/* Add the products of two lines with words j and j + 1 of the activations at x; j is even. */
MTP_ALWAYS_INLINE void mtp_add_lines(const int is_unsigned, const mtp_tokens tokens,
                                     int32x4_t *sums, mtp_two_lines codes, const int32_t *x,
                                     const int j)
{
    MTP_UNROLL
    for (int i = 0; i < mtp_registers(tokens); i++) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
        if (tokens.in_pairs) {
            const int32_t *words = x + j * tokens.n + i / 2 * 4;
            const int8x16_t pair = vreinterpretq_s8_s32(
                i / 2 * 2 + 1 < tokens.n ? vld1q_s32(words) : mtp_load_twice(words));
            const uint8x16_t w = codes.of[i % 2];
            sums[i] = is_unsigned ? vusmmlaq_s32(sums[i], w, pair)
                                  : vmmlaq_s32(sums[i], vreinterpretq_s8_u8(w), pair);
            continue;
        }
#endif
        const int even = MTP_HAS_I8MM ? j * tokens.n + 2 * i : j * tokens.n + i;
        const int odd = MTP_HAS_I8MM ? even + 1 : even + tokens.n;
        sums[i] = mtp_add_word(is_unsigned, sums[i], codes.of[0], x, even);
        sums[i] = mtp_add_word(is_unsigned, sums[i], codes.of[1], x, odd);
    }
}

MTP_ALWAYS_INLINE float32x4_t mtp_load_halves(const uint16_t *halves)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves)));
}

MTP_ALWAYS_INLINE uint8x16_t mtp_low_nibble(uint8x16_t codes)
{
    return vandq_u8(codes, vdupq_n_u8(15));
}

MTP_ALWAYS_INLINE mtp_two_lines mtp_low_nibbles(mtp_two_lines lines)
{
    return (mtp_two_lines){{mtp_low_nibble(lines.of[0]), mtp_low_nibble(lines.of[1])}};
}

MTP_ALWAYS_INLINE mtp_two_lines mtp_high_nibbles(mtp_two_lines lines)
{
    return (mtp_two_lines){{vshrq_n_u8(lines.of[0], 4), vshrq_n_u8(lines.of[1], 4)}};
}

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

/* Bytes that hold bits of two lines, those of the second `step` higher. */
typedef struct {
    mtp_two_lines lines;
    int step; /* that is left */
} mtp_shared_bits;

MTP_ALWAYS_INLINE mtp_shared_bits mtp_share_bits(const mtp_tokens tokens, uint8x16_t bytes,
                                                 const int step)
{
    if (!tokens.in_pairs)
        return (mtp_shared_bits){{{bytes, bytes}}, step};
    return (mtp_shared_bits){mtp_join_lines(tokens, bytes, bytes >> (uint8_t)step), 0};
}

/* Codes with bit `to` of the bit that is at `from` for the first line. */
MTP_ALWAYS_INLINE mtp_two_lines mtp_add_bit(mtp_two_lines codes, const mtp_shared_bits bits,
                                            const int from, const int to)
{
    MTP_UNROLL
    for (int i = 0; i < 2; i++)
        codes.of[i] =
            mtp_take_bits(codes.of[i], mtp_move_bits(bits.lines.of[i], from + i * bits.step, to),
                          (uint8_t)(1 << to));
    return codes;
}

MTP_ALWAYS_INLINE mtp_two_lines mtp_look_up(mtp_two_lines codes, const int8_t values[16])
{
    const uint8x16_t table = vreinterpretq_u8_s8(vld1q_s8(values));
    return (mtp_two_lines){{vqtbl1q_u8(table, codes.of[0]), vqtbl1q_u8(table, codes.of[1])}};
}

/* sum + scale * x_scale * integers, rounded after the product of the scales and at the end */
MTP_ALWAYS_INLINE float32x4_t mtp_add_block(float32x4_t sum, int32x4_t integers, float32x4_t scale,
                                            float32x4_t x_scale)
{
    return vfmaq_f32(sum, vcvtq_f32_s32(integers), vmulq_f32(scale, x_scale));
}

/* sum - min * x_scale * mins, likewise */
MTP_ALWAYS_INLINE float32x4_t mtp_take_mins(float32x4_t sum, int32x4_t mins, float32x4_t min,
                                            float32x4_t x_scale)
{
    return vfmsq_f32(sum, vcvtq_f32_s32(mins), vmulq_f32(min, x_scale));
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

/* sums[four rows][] + bytes of eight rows * one of the two int16 of a word for each token */
MTP_ALWAYS_INLINE void mtp_add_products(const mtp_tokens tokens, int32x4_t sums[2][4],
                                        int8x8_t bytes, const int32_t *words, const int upper)
{
    const int16x8_t wide = vmovl_s8(bytes);
    MTP_UNROLL
    for (int i = 0; i < mtp_registers(tokens); i++) {
        if (!tokens.in_pairs) {
            int16_t number;
            memcpy(&number, (const char *)(words + i) + 2 * upper, sizeof number);
            sums[0][i] = vmlal_n_s16(sums[0][i], vget_low_s16(wide), number);
            sums[1][i] = vmlal_high_n_s16(sums[1][i], wide, number);
            continue;
        }
        const int16x8_t pairs = vreinterpretq_s16_s32(mtp_words_of(tokens, words, i));
        const int16x8_t numbers = upper ? vuzp2q_s16(pairs, pairs) : vuzp1q_s16(pairs, pairs);
        MTP_UNROLL
        for (int s = 0; s < 2; s++) {
            const int16x8_t rows = s ? vzip2q_s16(wide, wide) : vzip1q_s16(wide, wide);
            sums[s][i] = i % 2 ? vmlal_high_s16(sums[s][i], rows, numbers)
                               : vmlal_s16(sums[s][i], vget_low_s16(rows), vget_low_s16(numbers));
        }
    }
}

/* Run `eight_rows(type, tokens, block, r, words, sum)` for all blocks of the halves of a group, with
 * sum[four rows][register]; tokens lie in pairs where `pays(type, n_tokens)`. */
#define MTP_EIGHT_ROWS_AT_ONCE(name, type, pays, eight_rows)                                       \
    MTP_ALWAYS_INLINE void name(const int n_tokens, const void *group, int64_t n_blocks,           \
                                const void *tile, float (*out)[32])                                \
    {                                                                                              \
        const mtp_tokens tokens = {n_tokens, MTP_HAS_I8MM && pays(type, n_tokens)};                \
        const char *block = group;                                                                 \
        for (int row = 0; row < 32; row += 16) {                                                   \
            const int32_t *words = tile;                                                           \
            float32x4_t sum[4][4];                                                                 \
            MTP_UNROLL                                                                             \
            for (int i = 0; i < 16; i++)                                                           \
                sum[i / 4][i % 4] = vdupq_n_f32(0);                                                \
            for (int64_t b = 0; b < n_blocks; b++) {                                               \
                mtp_fetch_ahead(block, (int)mtp_block256_bytes(type));                             \
                eight_rows(type, tokens, block, 0, words, sum);                                    \
                eight_rows(type, tokens, block, 8, words, sum + 2);                                \
                block += mtp_block256_bytes(type);                                                 \
                words += MTP_ACT256_WORDS * n_tokens;                                              \
            }                                                                                      \
            MTP_UNROLL                                                                             \
            for (int i = 0; i < 4; i++)                                                            \
                mtp_store_sums(tokens, sum[i], row + 4 * i, out);                                  \
        }                                                                                          \
    }

#endif
