/* What packs one block of a row, for each type of blocks. */
#ifndef MTPCORE_PACK_H
#define MTPCORE_PACK_H

#include "matmul_layout.h"

/* Block `b` of row `r` of a group; `n_blocks` is the length of a row. */
typedef void mtp_pack_block(const uint8_t *from, int64_t n_blocks, int64_t b, int r, void *group);

mtp_pack_block mtp_pack_q8_0, mtp_pack_q4_0, mtp_pack_q4_1, mtp_pack_q5_0, mtp_pack_q5_1,
    mtp_pack_iq4_nl, mtp_pack_mxfp4;
mtp_pack_block mtp_pack_q2_k, mtp_pack_q3_k, mtp_pack_q4_k, mtp_pack_q5_k, mtp_pack_q6_k,
    mtp_pack_iq4_xs;

#endif
