/* GGUF rows into packed groups. Row `r` of a group goes into lane `r` of every line. */
#include <string.h>

#include "pack.h"

/* Subtract 128 from four int8 codes and read them as uint8, or the reverse. */
static void copy_offset_codes(uint8_t *to, const uint8_t *from)
{
    for (int i = 0; i < 4; i++)
        to[i] = from[i] ^ 0x80;
}

static void pack_q8_0(const uint8_t *from, int64_t n_blocks, int64_t b, int r, void *group)
{
    mtp_q8_0_block *block = (mtp_q8_0_block *)group + b;
    (void)n_blocks;
    memcpy(&block->scale[r], from, 2);
    for (int j = 0; j < 8; j++)
        copy_offset_codes(block->code[j][r], from + 2 + 4 * j);
}

static void pack_q4_0(const uint8_t *from, int64_t n_blocks, int64_t b, int r, void *group)
{
    mtp_q4_0_block *block = (mtp_q4_0_block *)group + b;
    (void)n_blocks;
    memcpy(&block->scale[r], from, 2);
    for (int j = 0; j < 4; j++)
        memcpy(block->code[j][r], from + 2 + 4 * j, 4);
}

static void pack_float(const uint8_t *from, int64_t n_blocks, int64_t b, int r, void *group)
{
    (void)n_blocks;
    memcpy((uint8_t *)group + 4 * (b * MTP_GROUP_ROWS + r), from, 4);
}

static void pack_half(const uint8_t *from, int64_t n_blocks, int64_t b, int r, void *group)
{
    (void)n_blocks;
    memcpy((uint8_t *)group + 2 * (b * MTP_GROUP_ROWS + r), from, 2);
}

static mtp_pack_block *packer_of(int32_t type)
{
    switch (type) {
    case MTP_Q8_0:
        return pack_q8_0;
    case MTP_Q4_0:
        return pack_q4_0;
    case MTP_Q2_K:
        return mtp_pack_q2_k;
    case MTP_Q3_K:
        return mtp_pack_q3_k;
    case MTP_Q4_K:
        return mtp_pack_q4_k;
    case MTP_Q5_K:
        return mtp_pack_q5_k;
    case MTP_Q6_K:
        return mtp_pack_q6_k;
    case MTP_IQ4_XS:
        return mtp_pack_iq4_xs;
    case MTP_F32:
        return pack_float;
    default: /* MTP_F16, MTP_BF16 */
        return pack_half;
    }
}

/* Block by block across the rows of a group, so that what is written stays in the first cache. */
void mtp_pack(int32_t type, int64_t n_cols, const void *rows, int64_t row_begin, int64_t row_end,
              int64_t n_rows, void *packed)
{
    const int64_t block_bytes = mtp_type_block_bytes(type);
    const int64_t n_blocks = n_cols / mtp_type_block(type);
    const int64_t row_bytes = n_blocks * block_bytes;
    const int64_t group_bytes = mtp_group_bytes(type, n_cols);
    mtp_pack_block *const pack_one = packer_of(type);
    const uint8_t *source = rows;
    for (int64_t row = row_begin; row < row_end; row += MTP_GROUP_ROWS) {
        uint8_t *group = (uint8_t *)packed + row / MTP_GROUP_ROWS * group_bytes;
        const int64_t left = (row_end < n_rows ? row_end : n_rows) - row;
        const int n = left < MTP_GROUP_ROWS ? (int)left : MTP_GROUP_ROWS;
        memset(group, 0, (size_t)group_bytes); /* missing rows and padding: scales of zero */
        for (int64_t b = 0; b < n_blocks; b++)
            for (int r = 0; r < n; r++)
                pack_one(source + r * row_bytes + b * block_bytes, n_blocks, b, r, group);
        source += n * row_bytes;
    }
}
