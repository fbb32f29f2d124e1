/* Values as blocks of a weight type, byte for byte as llama.cpp's quantiser writes them (ggml-quants.c
 * of an x86-64 build, where no product is contracted with a sum). */
#ifndef MTPCORE_ENCODE_H
#define MTPCORE_ENCODE_H

#include <stdint.h>

/* Whether values can be encoded as this type (of matmul/weight_types.h). */
int mtp_encodes(int32_t type);

/* n_rows rows of n_cols values, whole blocks of them; `importance` has a weight for each column of
 * the rows, or is NULL, and then another search is used where the type has two. Values and weights
 * are finite. */
void mtp_encode(int32_t type, int64_t n_rows, int64_t n_cols, const float *x,
                const float *importance, uint8_t *blocks);

typedef void (*mtp_encode_row)(int32_t type, int64_t n_cols, const float *x,
                               const float *importance, uint8_t *blocks);
extern const mtp_encode_row mtp_encode_row_portable, mtp_encode_row_avx2, mtp_encode_row_avx512;
extern const mtp_encode_row mtp_encode_row_neon;

#endif
