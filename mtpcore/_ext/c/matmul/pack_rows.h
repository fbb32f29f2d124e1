/* The walk over the blocks of a group's rows. */
#ifndef MTPCORE_PACK_ROWS_H
#define MTPCORE_PACK_ROWS_H

#include "matmul/layout.h"

#include <string.h>

enum { MTP_LONGEST_BLOCK = 256 /* bytes; Q6_K has 210 */ };

/* Pack the blocks of 16 or 32 rows that begin at `from`. */
typedef void mtp_pack_block(const uint8_t *from, int64_t row_bytes, void *block);

/* Ask for bytes that are needed soon; they need not be there. */
static inline void fetch_ahead(const uint8_t *from, int64_t n_bytes)
{
    for (int64_t i = 0; i < n_bytes; i += 64)
        __builtin_prefetch(from + i, 0, 2);
}

/* `rows` rows (16 or 32) lie in a packed block; of the group's 32 `n_rows` are there. Meanwhile
 * the next group, which lies right after it, comes into the second cache. */
static inline __attribute__((always_inline)) void pack_blocks(mtp_pack_block *pack, int type,
                                                              int rows, const uint8_t *from,
                                                              int64_t row_bytes, int64_t n_blocks,
                                                              int n_rows, void *group)
{
    const int64_t block_bytes = mtp_type_block_bytes(type);
    const int64_t packed_bytes = rows == 32 ? mtp_block32_bytes(type) : mtp_block256_bytes(type);
    char *to = group;
    for (int first = 0; first < MTP_GROUP_ROWS; first += rows) {
        const uint8_t *block = from + first * row_bytes;
        if (first + rows <= n_rows) {
            const uint8_t *next = block + MTP_GROUP_ROWS * row_bytes;
            for (int64_t b = 0; b < n_blocks; b++, block += block_bytes, to += packed_bytes) {
                fetch_ahead(next + b * rows * block_bytes, rows * block_bytes);
                pack(block, row_bytes, to);
            }
            continue;
        }
        uint8_t filled[32 * MTP_LONGEST_BLOCK] = {0};
        for (int64_t b = 0; b < n_blocks; b++, block += block_bytes, to += packed_bytes) {
            for (int r = 0; first + r < n_rows; r++)
                memcpy(filled + r * MTP_LONGEST_BLOCK, block + r * row_bytes, (size_t)block_bytes);
            pack(filled, MTP_LONGEST_BLOCK, to);
        }
    }
}

#endif
