/* GGUF rows into packed groups. Row `r` of a group goes into lane `r` of every line. */
#include <string.h>

#include "pack.h"

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

static mtp_pack_block *const packers[MTP_TYPES] = {
    [MTP_F32] = pack_float,
    [MTP_F16] = pack_half,
    [MTP_BF16] = pack_half,
    [MTP_Q8_0] = mtp_pack_q8_0,
    [MTP_Q4_0] = mtp_pack_q4_0,
    [MTP_Q4_1] = mtp_pack_q4_1,
    [MTP_Q5_0] = mtp_pack_q5_0,
    [MTP_Q5_1] = mtp_pack_q5_1,
    [MTP_IQ4_NL] = mtp_pack_iq4_nl,
    [MTP_MXFP4] = mtp_pack_mxfp4,
    [MTP_Q2_K] = mtp_pack_q2_k,
    [MTP_Q3_K] = mtp_pack_q3_k,
    [MTP_Q4_K] = mtp_pack_q4_k,
    [MTP_Q5_K] = mtp_pack_q5_k,
    [MTP_Q6_K] = mtp_pack_q6_k,
    [MTP_IQ4_XS] = mtp_pack_iq4_xs,
};

/* Block by block across the rows of a group, so that what is written stays in the first cache. */
void mtp_pack(int32_t type, int64_t n_cols, const void *rows, int64_t row_begin, int64_t row_end,
              int64_t n_rows, void *packed)
{
    const int64_t block_bytes = mtp_type_block_bytes(type);
    const int64_t n_blocks = n_cols / mtp_type_block(type);
    const int64_t row_bytes = n_blocks * block_bytes;
    const int64_t group_bytes = mtp_group_bytes(type, n_cols);
    mtp_pack_block *const pack_one = packers[type];
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
