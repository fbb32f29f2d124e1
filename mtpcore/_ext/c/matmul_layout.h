/* How packed weights and prepared activations lie in memory; private to the kernels.
 *
 * Weights come in groups of 32 output rows, one vector lane a row. A line is 64 bytes: 16 rows
 * times 4 consecutive columns. Lines are 64-byte aligned and stored in the order in which the
 * kernels read them, so that each group is one ascending stream, which memory delivers fastest.
 * Groups of the float types are plain [column][32 rows].
 *
 * Activations come in tiles of at most 8 (MTP_ACT_Q8_256: 4) tokens, the tokens interleaved: word
 * `w` of token `t` in a tile of T tokens is at [w * T + t]. A tile of tokens t, t+1, ... begins at
 * t * mtp_token_bytes(), whatever its width.
 */
#ifndef MTPCORE_MATMUL_LAYOUT_H
#define MTPCORE_MATMUL_LAYOUT_H

#include "matmul.h"

enum { MTP_GROUP_ROWS = 32 };

/* 32 columns of 32 rows. */
typedef struct {
    uint16_t scale[32];     /* float16 */
    uint8_t code[8][32][4]; /* code + 128, column 4j + i at [j][row][i] */
} mtp_q8_0_block;

typedef struct {
    uint16_t scale[32];
    uint8_t code[4][32][4]; /* low nibble: code + 8 of column 4j + i; high: of 16 + 4j + i */
} mtp_q4_0_block;

/* Blocks of 256 columns hold 16 rows: their kernels take the halves of a group one after the
 * other, all blocks of rows 0-15 and then all of rows 16-31.
 *
 * 256 columns = 4 chunks of 64 = 8 sub-blocks of 32, two in a chunk. */
typedef struct {
    uint16_t scale[16], min[16];
    uint8_t low[4][2][16];     /* per sub-block: scale bits 0-3 | min bits 0-3 << 4 */
    uint8_t high[4][16];       /* scale bits 4-5, min bits 4-5 of the first sub-block, the second */
    uint8_t code[4][8][16][4]; /* low nibble: column 64c + 4j + i; high: 32 later */
} mtp_q4_k_block;

/* 256 columns = 2 halves of 4 quarters of 32; a sub-scale serves 16 columns. For column 4j + i of
 * the quarters 0..3 line 0 holds the four lower bits of quarters 0 (low nibble) and 2, line 1 those
 * of 1 and 3, line 2 the two upper bits of each, quarter 0 lowest. */
typedef struct {
    float scale[16];
    int8_t sub_scale[16][16];
    uint8_t code[2][8][3][16][4];
} mtp_q6_k_block;

static inline int mtp_q4_k_scale(const mtp_q4_k_block *block, int sub, int r)
{
    const int high = block->high[sub / 2][r] >> (4 * (sub % 2));
    return (block->low[sub / 2][sub % 2][r] & 15) | (high & 3) << 4;
}

static inline int mtp_q4_k_min(const mtp_q4_k_block *block, int sub, int r)
{
    const int high = block->high[sub / 2][r] >> (4 * (sub % 2));
    return block->low[sub / 2][sub % 2][r] >> 4 | (high >> 2 & 3) << 4;
}

static inline int mtp_q6_k_code(const mtp_q6_k_block *block, int k, int r)
{
    const int quarter = k % 128 / 32, j = k % 32 / 4, i = k % 4;
    const uint8_t(*lines)[16][4] = block->code[k / 128][j];
    const int low = lines[quarter % 2][r][i] >> (4 * (quarter / 2)) & 15;
    const int high = lines[2][r][i] >> (2 * quarter) & 3;
    return (low | high << 4) - 32;
}

/* Words of one token in a block of prepared activations. */
enum {
    MTP_ACT32_MINUS_SUM = 8,  /* after 8 words of 4 codes: minus the sum of the 32 codes */
    MTP_ACT32_SCALE = 9,      /* float32 */
    MTP_ACT32_WORDS = 10,
    MTP_ACT256_MINUS_SUM = 64, /* after 64 words of 4 codes: minus the sums of 16 codes */
    MTP_ACT256_PAIR_SUM = 80,  /* 4 words: two int16 sums of 32 codes */
    MTP_ACT256_SCALE = 84,     /* float32 */
    MTP_ACT256_WORDS = 85
};

/* Tokens that share one pass over the weights. */
static inline int mtp_tile_width(int activation)
{
    return activation == MTP_ACT_Q8_256 ? 4 : MTP_TILE;
}

static inline int64_t mtp_token_bytes(int activation, int64_t n_cols)
{
    switch (activation) {
    case MTP_ACT_Q8_32:
        return n_cols / 32 * MTP_ACT32_WORDS * 4;
    case MTP_ACT_Q8_256:
        return n_cols / 256 * MTP_ACT256_WORDS * 4;
    default:
        return n_cols * 4;
    }
}

/* Bytes of one packed group, a multiple of 64. */
static inline int64_t mtp_group_bytes(int32_t type, int64_t n_cols)
{
    const int64_t n_blocks = n_cols / mtp_type_block(type);
    switch (type) {
    case MTP_Q8_0:
        return n_blocks * (int64_t)sizeof(mtp_q8_0_block);
    case MTP_Q4_0:
        return n_blocks * (int64_t)sizeof(mtp_q4_0_block);
    case MTP_Q4_K:
        return 2 * n_blocks * (int64_t)sizeof(mtp_q4_k_block);
    case MTP_Q6_K:
        return 2 * n_blocks * (int64_t)sizeof(mtp_q6_k_block);
    default:
        return n_cols * MTP_GROUP_ROWS * mtp_type_block_bytes(type);
    }
}

#endif
