/* GGUF rows into packed groups. Row `r` of a group goes into lane `r` of every line. */
#include <string.h>

#include "float16.h"
#include "matmul_layout.h"

/* Subtract 128 from four int8 codes and read them as uint8, or the reverse. */
static void copy_offset_codes(uint8_t *to, const uint8_t *from)
{
    for (int i = 0; i < 4; i++)
        to[i] = from[i] ^ 0x80;
}

/* One block of row `r` of a group; `n_blocks` is the length of a row. */
typedef void pack_block(const uint8_t *from, int64_t n_blocks, int64_t b, int r, void *group);

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

/* The 6-bit scale and min of sub-block `s` from the 12 bytes in which GGUF keeps eight of them. */
static void unpack_scale_min(const uint8_t *bytes, int s, int *scale, int *min)
{
    if (s < 4) {
        *scale = bytes[s] & 63;
        *min = bytes[s + 4] & 63;
    } else {
        *scale = (bytes[s + 4] & 15) | bytes[s - 4] >> 6 << 4;
        *min = bytes[s + 4] >> 4 | bytes[s] >> 6 << 4;
    }
}

static void pack_q4_k(const uint8_t *from, int64_t n_blocks, int64_t b, int row, void *group)
{
    mtp_q4_k_block *block = (mtp_q4_k_block *)group + row / 16 * n_blocks + b;
    const int r = row % 16;
    memcpy(&block->scale[r], from, 2);
    memcpy(&block->min[r], from + 2, 2);
    for (int s = 0; s < 8; s++) {
        int scale, min;
        unpack_scale_min(from + 4, s, &scale, &min);
        block->low[s / 2][s % 2][r] = (uint8_t)((scale & 15) | (min & 15) << 4);
        const int high = (scale >> 4 | min >> 4 << 2) << (s % 2 * 4);
        block->high[s / 2][r] = (uint8_t)(s % 2 ? block->high[s / 2][r] | high : high);
    }
    for (int j = 0; j < 32; j++)
        memcpy(block->code[j / 8][j % 8][r], from + 16 + 4 * j, 4);
}

static void pack_q6_k(const uint8_t *from, int64_t n_blocks, int64_t b, int row, void *group)
{
    mtp_q6_k_block *block = (mtp_q6_k_block *)group + row / 16 * n_blocks + b;
    const int r = row % 16;
    uint16_t scale;
    memcpy(&scale, from + 208, 2);
    block->scale[r] = mtp_float_from_half(scale);
    for (int s = 0; s < 16; s++)
        block->sub_scale[s][r] = (int8_t)from[192 + s];
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < 8; j++) {
            memcpy(block->code[h][j][0][r], from + 64 * h + 4 * j, 4);
            memcpy(block->code[h][j][1][r], from + 64 * h + 32 + 4 * j, 4);
            memcpy(block->code[h][j][2][r], from + 128 + 32 * h + 4 * j, 4);
        }
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

static pack_block *packer_of(int32_t type)
{
    switch (type) {
    case MTP_Q8_0:
        return pack_q8_0;
    case MTP_Q4_0:
        return pack_q4_0;
    case MTP_Q4_K:
        return pack_q4_k;
    case MTP_Q6_K:
        return pack_q6_k;
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
    pack_block *const pack_one = packer_of(type);
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
