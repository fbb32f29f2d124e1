/* What packs a group, for each instruction set and weight type. */
#ifndef MTPCORE_PACK_H
#define MTPCORE_PACK_H

#include "matmul/layout.h"

/* Rows `from`, `row_bytes` apart, into a group; of its 32 rows the first `n_rows` are there, the
 * others become zero. `n_blocks` counts columns for the float types. */
typedef void mtp_pack_rows(const uint8_t *from, int64_t row_bytes, int64_t n_blocks, int n_rows,
                           void *group);

extern mtp_pack_rows *const mtp_packers_portable[MTP_TYPES];
#if defined(__x86_64__)
extern mtp_pack_rows *const mtp_packers_avx2[MTP_TYPES], *const mtp_packers_avx512[MTP_TYPES];
#elif defined(__aarch64__)
extern mtp_pack_rows *const mtp_packers_neon[MTP_TYPES];
#endif

/* Pack the group that begins with row `row` of a matrix whose rows lie at `rows` as in a file. */
void mtp_pack_group(int32_t type, int64_t n_rows, int64_t n_cols, const void *rows, int64_t row,
                    void *group);

#endif
