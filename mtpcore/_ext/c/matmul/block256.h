/* How packed blocks of 256 columns lie in memory, and what the numbers in them mean.
 *
 * A block holds 16 rows: the kernels take the halves of a group one after the other, all blocks of
 * rows 0-15 and then all of rows 16-31. A weight of such a type is
 *
 *     scale * sub_scale * code - min * sub_min
 *
 * (without the second term where a type has no mins), with whole numbers but for scale and min.
 */
#ifndef MTPCORE_MATMUL_BLOCK256_H
#define MTPCORE_MATMUL_BLOCK256_H

#include "core/float16.h"
#include "matmul/matmul.h"
#include "matmul/tables.h"

/* Types of chunks: 4 chunks of 64 columns, in each two sub-blocks of 32, whose lower four bits
 * share the bytes: low nibble: column 64c + 4j + i, high nibble: 32 later. */
typedef struct {
    uint16_t scale[16], min[16];
    uint8_t low[4][2][16]; /* per sub-block: scale bits 0-3 | min bits 0-3 << 4 */
    uint8_t high[4][16];   /* scale bits 4-5, min bits 4-5 of the first sub-block, the second */
} mtp_six_bit_scales;

typedef struct {
    mtp_six_bit_scales scales;
    uint8_t code[4][8][16][4];
} mtp_q4_k_block;

typedef struct {
    mtp_six_bit_scales scales;
    struct {
        uint8_t fifth[2][16][4]; /* [j / 4]: bits 0-3 of low nibbles j % 4, 4-7 of high ones */
        uint8_t code[8][16][4];
    } chunk[4];
} mtp_q5_k_block;

typedef struct {
    float scale[16];
    int8_t sub_scale[8][16];
    uint8_t code[4][8][16][4]; /* places in a table */
} mtp_iq4_xs_block;

/* Types of quarters: 2 halves of 4 quarters of 32 columns; a sub-scale serves 16. Column 4j + i of
 * all quarters share bytes: two bits for each in a line, quarter 0 lowest. */
typedef struct {
    uint16_t scale[16], min[16];
    uint8_t sub_scale_min[16][16]; /* sub-scale | sub-min << 4 */
    uint8_t code[2][8][16][4];
} mtp_q2_k_block;

typedef struct {
    float scale[16];
    int8_t sub_scale[16][16];
    struct {
        uint8_t third[16][4]; /* bits 0-3: quarters of the first line, 4-7: of the second */
        uint8_t code[2][16][4];
    } pair[2][4]; /* of lines j */
} mtp_q3_k_block;

/* Line 0 holds the four lower bits of quarters 0 (low nibble) and 2, line 1 those of 1 and 3, line
 * 2 the two upper bits of each. */
typedef struct {
    float scale[16];
    int8_t sub_scale[16][16];
    uint8_t code[2][8][3][16][4];
} mtp_q6_k_block;

static inline int64_t mtp_block256_bytes(int type)
{
    switch (type) {
    case MTP_Q2_K:
        return sizeof(mtp_q2_k_block);
    case MTP_Q3_K:
        return sizeof(mtp_q3_k_block);
    case MTP_Q4_K:
        return sizeof(mtp_q4_k_block);
    case MTP_Q5_K:
        return sizeof(mtp_q5_k_block);
    case MTP_Q6_K:
        return sizeof(mtp_q6_k_block);
    default: /* MTP_IQ4_XS */
        return sizeof(mtp_iq4_xs_block);
    }
}

/* Whether it is a type of chunks, whose sub-blocks have 32 columns, else of quarters, and 16. */
static inline int mtp_is_of_chunks(int type)
{
    return type == MTP_Q4_K || type == MTP_Q5_K || type == MTP_IQ4_XS;
}

static inline int mtp_block256_has_min(int type)
{
    return type == MTP_Q2_K || type == MTP_Q4_K || type == MTP_Q5_K;
}

/* Types with mins begin with float16 scales and mins, the others with float32 scales. */
static inline float mtp_block256_scale(int type, const void *block, int r)
{
    if (mtp_block256_has_min(type))
        return mtp_float_from_half(((const uint16_t *)block)[r]);
    return ((const float *)block)[r];
}

static inline float mtp_block256_min(const void *block, int r)
{
    return mtp_float_from_half(((const uint16_t *)block)[16 + r]);
}

/* Of the 16 columns 16s .. 16s + 15. */
static inline int mtp_sub_scale(int type, const void *block, int s, int r)
{
    const mtp_six_bit_scales *six = block;
    switch (type) {
    case MTP_Q2_K:
        return ((const mtp_q2_k_block *)block)->sub_scale_min[s][r] & 15;
    case MTP_Q3_K:
        return ((const mtp_q3_k_block *)block)->sub_scale[s][r];
    case MTP_Q6_K:
        return ((const mtp_q6_k_block *)block)->sub_scale[s][r];
    case MTP_IQ4_XS:
        return ((const mtp_iq4_xs_block *)block)->sub_scale[s / 2][r];
    default: /* MTP_Q4_K, MTP_Q5_K */
        return (six->low[s / 4][s / 2 % 2][r] & 15) | (six->high[s / 4][r] >> (s / 2 % 2 * 4) & 3)
                                                          << 4;
    }
}

static inline int mtp_sub_min(int type, const void *block, int s, int r)
{
    const mtp_six_bit_scales *six = block;
    if (type == MTP_Q2_K)
        return ((const mtp_q2_k_block *)block)->sub_scale_min[s][r] >> 4;
    return six->low[s / 4][s / 2 % 2][r] >> 4 | (six->high[s / 4][r] >> (s / 2 % 2 * 4 + 2) & 3)
                                                    << 4;
}

/* A chunk of 64 columns: 8 lines of nibbles and, for Q5_K, two lines of fifth bits. */
typedef struct {
    const uint8_t (*code)[16][4], (*fifth)[16][4];
} mtp_chunk;

static inline mtp_chunk mtp_chunk_of(int type, const void *block, int c)
{
    switch (type) {
    case MTP_Q5_K:
        return (mtp_chunk){((const mtp_q5_k_block *)block)->chunk[c].code,
                           ((const mtp_q5_k_block *)block)->chunk[c].fifth};
    case MTP_IQ4_XS:
        return (mtp_chunk){((const mtp_iq4_xs_block *)block)->code[c], NULL};
    default: /* MTP_Q4_K */
        return (mtp_chunk){((const mtp_q4_k_block *)block)->code[c], NULL};
    }
}

static inline int mtp_chunk_code(int type, const void *block, int k, int r)
{
    const mtp_chunk chunk = mtp_chunk_of(type, block, k / 64);
    const int odd = k / 32 % 2, j = k % 32 / 4, i = k % 4;
    const int nibble = chunk.code[j][r][i] >> (4 * odd) & 15;
    if (type == MTP_IQ4_XS)
        return mtp_iq4_values[nibble];
    if (type == MTP_Q5_K)
        return nibble | (chunk.fifth[j / 4][r][i] >> (4 * odd + j % 4) & 1) << 4;
    return nibble;
}

static inline int mtp_quarter_code(int type, const void *block, int k, int r)
{
    const int h = k / 128, quarter = k % 128 / 32, j = k % 32 / 4, i = k % 4;
    if (type == MTP_Q2_K)
        return ((const mtp_q2_k_block *)block)->code[h][j][r][i] >> (2 * quarter) & 3;
    if (type == MTP_Q3_K) {
        const mtp_q3_k_block *q3 = block;
        const int low = q3->pair[h][j / 2].code[j % 2][r][i] >> (2 * quarter) & 3;
        const int third = q3->pair[h][j / 2].third[r][i] >> (4 * (j % 2) + quarter) & 1;
        return (low | third << 2) - 4;
    }
    const uint8_t (*lines)[16][4] = ((const mtp_q6_k_block *)block)->code[h][j];
    const int low = lines[quarter % 2][r][i] >> (4 * (quarter / 2)) & 15;
    const int high = lines[2][r][i] >> (2 * quarter) & 3;
    return (low | high << 4) - 32;
}

static inline int mtp_block256_code(int type, const void *block, int k, int r)
{
    if (mtp_is_of_chunks(type))
        return mtp_chunk_code(type, block, k, r);
    return mtp_quarter_code(type, block, k, r);
}

#endif
