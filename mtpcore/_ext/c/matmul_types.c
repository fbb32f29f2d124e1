/* Facts about the weight types. */
#include "matmul_layout.h"

typedef struct {
    int block, block_bytes, activation;
} type_facts;

static const type_facts types[MTP_TYPES] = {
    [MTP_F32] = {1, 4, MTP_ACT_F32},
    [MTP_F16] = {1, 2, MTP_ACT_F32},
    [MTP_BF16] = {1, 2, MTP_ACT_F32},
    [MTP_Q4_0] = {32, 18, MTP_ACT_Q8_32},
    [MTP_Q4_1] = {32, 20, MTP_ACT_Q8_32},
    [MTP_Q5_0] = {32, 22, MTP_ACT_Q8_32},
    [MTP_Q5_1] = {32, 24, MTP_ACT_Q8_32},
    [MTP_Q8_0] = {32, 34, MTP_ACT_Q8_32},
    [MTP_IQ4_NL] = {32, 18, MTP_ACT_Q8_32},
    [MTP_MXFP4] = {32, 17, MTP_ACT_Q8_32},
    [MTP_Q2_K] = {256, 84, MTP_ACT_Q8_256},
    [MTP_Q3_K] = {256, 110, MTP_ACT_Q8_256},
    [MTP_Q4_K] = {256, 144, MTP_ACT_Q8_256},
    [MTP_Q5_K] = {256, 176, MTP_ACT_Q8_256},
    [MTP_Q6_K] = {256, 210, MTP_ACT_Q8_256},
    [MTP_IQ4_XS] = {256, 136, MTP_ACT_Q8_256},
};

int mtp_type_is_native(int32_t type)
{
    return type >= 0 && type < MTP_TYPES && types[type].block != 0;
}

int64_t mtp_type_block(int32_t type)
{
    return types[type].block;
}

int64_t mtp_type_block_bytes(int32_t type)
{
    return types[type].block_bytes;
}

int mtp_type_activation(int32_t type)
{
    return types[type].activation;
}

size_t mtp_packed_bytes(int32_t type, int64_t n_rows, int64_t n_cols)
{
    const int64_t n_groups = (n_rows + MTP_GROUP_ROWS - 1) / MTP_GROUP_ROWS;
    return (size_t)(n_groups * mtp_group_bytes(type, n_cols));
}

int64_t mtp_activation_block(int activation)
{
    return activation == MTP_ACT_Q8_256 ? 256 : activation == MTP_ACT_Q8_32 ? 32 : 1;
}

size_t mtp_activation_bytes(int activation, int64_t n_tokens, int64_t n_cols)
{
    return (size_t)(n_tokens * mtp_token_bytes(activation, n_cols));
}
