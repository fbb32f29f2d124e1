/* How packed weights and prepared activations lie in memory; private to the kernels.
 *
 * Weights come in groups of 32 output rows, one vector lane a row. A line is 64 bytes: 16 rows
 * times 4 consecutive columns. Lines are 64-byte aligned and stored in the order in which the
 * kernels read them, so that each group is one ascending stream, which memory delivers fastest.
 * Groups of the float types are plain [column][32 rows].
 *
 * Activations come in tiles of at most 8 (MTP_ACT_Q8_256: 4) tokens, the tokens interleaved: word
 * `w` of token `t` in a tile of T tokens is at [w * T + t]. I8MM takes eight columns at a time: for
 * it words w and w + 1 of four codes each, w even, are at [w * T + 2t] and after that. Tile registers
 * take 64 columns of up to 16 tokens: so wide is a tile then, and words w to w + 15, w a multiple of
 * 16, are at [w * T + 16t] and after that; of MTP_ACT_Q8_32, whose blocks have 32 columns, words 0 to
 * 7 at [8t]. A tile of tokens t, t+1, ... begins at
 * t * mtp_token_bytes(), whatever its width.
 */
#ifndef MTPCORE_MATMUL_LAYOUT_H
#define MTPCORE_MATMUL_LAYOUT_H

#include "core/cpu.h"
#include "matmul/block256.h"
#include "matmul/block32.h"

enum { MTP_GROUP_ROWS = 32 };

/* Words of one token in a block of prepared activations. */
enum {
    MTP_ACT32_MINUS_SUM = 8, /* after 8 words of 4 codes: minus the sum of the 32 codes */
    MTP_ACT32_SCALE = 9,     /* float32 */
    MTP_ACT32_WORDS = 10,
    MTP_ACT256_MINUS_SUM = 64, /* after 64 words of 4 codes: minus the sums of 16 codes */
    MTP_ACT256_PAIR_SUM = 80,  /* 4 words: two int16 sums of 32 codes */
    MTP_ACT256_SCALE = 84,     /* float32 */
    MTP_ACT256_WORDS = 85
};

/* Tokens, and rows of weights, of a tile register; from so many tokens on these are used: weights are
 * unpacked and scaled for them, which takes longer than it saves where there are few. */
enum { MTP_TILE_REGISTER = 16, MTP_LEAST_IN_TILES = 64 };

/* Whether so many tokens are multiplied in tile registers. */
static inline int mtp_uses_tile_registers(int activation, int64_t n_tokens)
{
    return activation != MTP_ACT_F32 && n_tokens >= MTP_LEAST_IN_TILES && mtp_isa() == MTP_ISA_AMX;
}

/* Words of a token's codes that lie together. */
static inline int mtp_words_together(int activation, int64_t n_tokens)
{
    if (mtp_uses_tile_registers(activation, n_tokens))
        return activation == MTP_ACT_Q8_32 ? 8 : 16;
    return mtp_isa() == MTP_ISA_I8MM ? 2 : 1;
}

/* Tokens that share one pass over the weights. */
static inline int mtp_tile_width(int activation, int64_t n_tokens)
{
    if (mtp_uses_tile_registers(activation, n_tokens))
        return MTP_TILE_REGISTER;
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
    switch (mtp_type_block(type)) {
    case 1:
        return n_cols * MTP_GROUP_ROWS * mtp_type_block_bytes(type);
    case 32:
        return n_blocks * mtp_block32_bytes(type);
    default:
        return 2 * n_blocks * mtp_block256_bytes(type);
    }
}

#endif
