/* Matmuls of many tokens: a block of 256 columns is unpacked once and multiplied with all tiles.
 *
 * The numbers are those of the direct kernels, in the same order, so the bits are the same.
 */
#ifndef MTPCORE_MATMUL_UNPACKED_H
#define MTPCORE_MATMUL_UNPACKED_H

#include "matmul/layout.h"

/* One block of 32 rows, 64-byte aligned, as an instruction set wants it. Codes, unsigned but for
 * IQ4_XS with AVX2: column 4j + i at [j][row][i]. */
typedef struct {
    uint8_t code[64][32][4];
    int32_t sub_scale[16][32]; /* types of chunks have 8; Q2_K with AVX-512: 8 pairs of int16 */
    int32_t sub_min[8][32];    /* pairs of int16, times sums of activations; of chunks 4 */
    int32_t missing[4][32];    /* Q4_K and IQ4_XS with AVX-512: pairs for those sums, too */
    float scale[32], min[32];
} mtp_unpacked;

/* One block of 32 columns and 32 rows, 64-byte aligned: codes as they are, column 4j + i at [j][row][i],
 * and mins where the type has them. */
typedef struct {
    int8_t code[8][32][4];
    float scale[32], min[32];
} mtp_unpacked_block32;

/* Unpack block b of a group of 32 rows. */
typedef void (*mtp_unpack)(const void *group, int64_t n_blocks, int64_t b, mtp_unpacked *block);

/* Add a block's products with the tokens of a tile, whose words of this block are `words`, to
 * sum[t][row]; 64-byte aligned. Meanwhile fetch ahead for 16 rows of a packed block, if it is not
 * NULL: spread over the work, weights come in its shadow. (AVX2 and AVX-VNNI fetch while they unpack.) */
typedef void (*mtp_multiply)(const mtp_unpacked *block, const int32_t *words, float (*sum)[32],
                             const char *packed);

typedef struct {
    mtp_unpack unpack;
    mtp_multiply multiply[4]; /* for 1..4 tokens */
    int most_direct;          /* up to so many tokens it is faster to unpack for each tile */
} mtp_unpacked_kernel;

#if defined(__x86_64__)
extern const mtp_unpacked_kernel mtp_unpacked_avx2[MTP_TYPES], mtp_unpacked_avxvnni[MTP_TYPES],
    mtp_unpacked_avx512[MTP_TYPES]; /* empty: none */

void mtp_unpack_block32_avx512(int type, const void *blocks, int n, mtp_unpacked_block32 *out);

/* Add the products of a group's blocks, of 32 or of 256 columns, with n_tokens prepared tokens, laid out
 * for tile registers, to sum[t][row]; 64-byte aligned. */
void mtp_multiply_block32_amx(int type, const void *group, int64_t n_blocks, const void *prepared,
                              int64_t n_tokens, float (*sum)[32]);
void mtp_multiply_block256_amx(int type, const void *group, int64_t n_blocks, const void *prepared,
                               int64_t n_tokens, float (*sum)[32]);
#endif

#endif
