/* How packed blocks of 32 columns lie in memory, and what the numbers in them mean.
 *
 * A weight of such a type is scale * code, or scale * code + min.
 */
#ifndef MTPCORE_MATMUL_BLOCK32_H
#define MTPCORE_MATMUL_BLOCK32_H

#include "core/float16.h"
#include "matmul/matmul.h"
#include "matmul/tables.h"

typedef struct {
    uint16_t scale[32];     /* float16, here and below */
    uint8_t code[8][32][4]; /* code + 128, column 4j + i at [j][row][i] */
} mtp_q8_0_block;

/* Types of nibbles: at code[j][row][i] the low one is of column 4j + i, the high of 16 + 4j + i. */
typedef struct {
    uint16_t scale[32];
    uint8_t code[4][32][4]; /* code + 8 */
} mtp_q4_0_block;

typedef struct {
    uint16_t scale[32];     /* MXFP4: bfloat16, which holds all its powers of two */
    uint8_t code[4][32][4]; /* places in a table */
} mtp_table_block;          /* IQ4_NL, MXFP4 */

typedef struct {
    uint16_t scale[32], min[32];
    uint8_t code[4][32][4];
} mtp_q4_1_block;

/* At fifth[row][i] bit j is of low nibbles j, bit 4 + j of high ones. */
typedef struct {
    uint16_t scale[32];
    uint8_t fifth[32][4];
    uint8_t code[4][32][4]; /* code + 16 */
} mtp_q5_0_block;

typedef struct {
    uint16_t scale[32], min[32];
    uint8_t fifth[32][4];
    uint8_t code[4][32][4];
} mtp_q5_1_block;

static inline int64_t mtp_block32_bytes(int type)
{
    switch (type) {
    case MTP_Q8_0:
        return sizeof(mtp_q8_0_block);
    case MTP_Q4_0:
        return sizeof(mtp_q4_0_block);
    case MTP_Q4_1:
        return sizeof(mtp_q4_1_block);
    case MTP_Q5_0:
        return sizeof(mtp_q5_0_block);
    case MTP_Q5_1:
        return sizeof(mtp_q5_1_block);
    default: /* MTP_IQ4_NL, MTP_MXFP4 */
        return sizeof(mtp_table_block);
    }
}

static inline int mtp_block32_has_min(int type) { return type == MTP_Q4_1 || type == MTP_Q5_1; }

/* Blocks begin with their scales, and mins follow. */
static inline float mtp_block32_scale(int type, const void *block, int r)
{
    const uint16_t scale = ((const uint16_t *)block)[r];
    return type == MTP_MXFP4 ? mtp_float_from_bfloat16(scale) : mtp_float_from_half(scale);
}

static inline float mtp_block32_min(const void *block, int r)
{
    return mtp_float_from_half(((const uint16_t *)block)[32 + r]);
}

/* The lines of a block of nibbles; fifth bits of Q5_0 and Q5_1 only. */
typedef struct {
    const uint8_t (*code)[32][4], (*fifth)[4];
} mtp_nibbles;

static inline mtp_nibbles mtp_nibbles_of(int type, const void *block)
{
    switch (type) {
    case MTP_Q4_0:
        return (mtp_nibbles){((const mtp_q4_0_block *)block)->code, NULL};
    case MTP_Q4_1:
        return (mtp_nibbles){((const mtp_q4_1_block *)block)->code, NULL};
    case MTP_Q5_0:
        return (mtp_nibbles){((const mtp_q5_0_block *)block)->code,
                             ((const mtp_q5_0_block *)block)->fifth};
    case MTP_Q5_1:
        return (mtp_nibbles){((const mtp_q5_1_block *)block)->code,
                             ((const mtp_q5_1_block *)block)->fifth};
    default: /* MTP_IQ4_NL, MTP_MXFP4 */
        return (mtp_nibbles){((const mtp_table_block *)block)->code, NULL};
    }
}

static inline int mtp_block32_code(int type, const void *block, int k, int r)
{
    if (type == MTP_Q8_0)
        return ((const mtp_q8_0_block *)block)->code[k / 4][r][k % 4] - 128;
    const mtp_nibbles lines = mtp_nibbles_of(type, block);
    const int nibble = lines.code[k % 16 / 4][r][k % 4] >> (k / 16 * 4) & 15;
    switch (type) {
    case MTP_IQ4_NL:
        return mtp_iq4_values[nibble];
    case MTP_MXFP4:
        return mtp_mxfp4_values[nibble];
    case MTP_Q4_0:
        return nibble - 8;
    case MTP_Q5_0:
        return (nibble | (lines.fifth[r][k % 4] >> (k / 4) & 1) << 4) - 16;
    case MTP_Q5_1:
        return nibble | (lines.fifth[r][k % 4] >> (k / 4) & 1) << 4;
    default: /* MTP_Q4_1 */
        return nibble;
    }
}

#endif
