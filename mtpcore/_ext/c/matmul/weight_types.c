/* Facts about the weight types. */
#include "matmul/weight_types.h"

typedef struct {
    int block, block_bytes, activation;
} type_facts;

#define FACTS(_, NAME, name, number, block, bytes, activation)                                     \
    [MTP_##NAME] = {block, bytes, activation},
static const type_facts types[MTP_TYPES] = {MTP_WEIGHT_TYPES(FACTS, )};

int mtp_type_is_native(int32_t type)
{
    return type >= 0 && type < MTP_TYPES && types[type].block != 0;
}

int64_t mtp_type_block(int32_t type) { return types[type].block; }

int64_t mtp_type_block_bytes(int32_t type) { return types[type].block_bytes; }

int mtp_type_activation(int32_t type) { return types[type].activation; }

int64_t mtp_row_bytes(int32_t type, int64_t n_cols)
{
    return n_cols / types[type].block * types[type].block_bytes;
}
