/* One row of a matrix as float32, in the operation order of the format's definition. */
#include <string.h>

#include "core/float16.h"
#include "matmul/pack.h"
#include "matmul/packing.h"

static void row_f32(const float *group, int64_t n_cols, int r, float *out)
{
    for (int64_t k = 0; k < n_cols; k++)
        out[k] = group[k * MTP_GROUP_ROWS + r];
}

static void row_f16(const uint16_t *group, int64_t n_cols, int r, float *out)
{
    for (int64_t k = 0; k < n_cols; k++)
        out[k] = mtp_float_from_half(group[k * MTP_GROUP_ROWS + r]);
}

static void row_bf16(const uint16_t *group, int64_t n_cols, int r, float *out)
{
    for (int64_t k = 0; k < n_cols; k++)
        out[k] = mtp_float_from_bfloat16(group[k * MTP_GROUP_ROWS + r]);
}

static void row_block32(int type, const char *block, int64_t n_blocks, int r, float *out)
{
    for (; n_blocks > 0; n_blocks--, block += mtp_block32_bytes(type), out += 32) {
        const float scale = mtp_block32_scale(type, block, r);
        for (int k = 0; k < 32; k++) {
            out[k] = scale * (float)mtp_block32_code(type, block, k, r);
            if (mtp_block32_has_min(type))
                out[k] += mtp_block32_min(block, r);
        }
    }
}

static void row_block256(int type, const char *block, int64_t n_blocks, int r, float *out)
{
    for (; n_blocks > 0; n_blocks--, block += mtp_block256_bytes(type), out += 256) {
        const float scale = mtp_block256_scale(type, block, r);
        for (int k = 0; k < 256; k++) {
            const float sub_scale = scale * (float)mtp_sub_scale(type, block, k / 16, r);
            out[k] = sub_scale * (float)mtp_block256_code(type, block, k, r);
            if (mtp_block256_has_min(type))
                out[k] -= mtp_block256_min(block, r) * (float)mtp_sub_min(type, block, k / 16, r);
        }
    }
}

/* Row `r` of a group whose rows are `n_blocks` blocks. */
static void row_of_group(int32_t type, const void *group, int64_t n_blocks, int r, float *out)
{
    const int64_t half_bytes = n_blocks * mtp_block256_bytes(type);
    switch (type) {
    case MTP_F32:
        row_f32(group, n_blocks, r, out);
        return;
    case MTP_F16:
        row_f16(group, n_blocks, r, out);
        return;
    case MTP_BF16:
        row_bf16(group, n_blocks, r, out);
        return;
    }
    if (mtp_type_block(type) == 32)
        row_block32(type, group, n_blocks, r, out);
    else
        row_block256(type, (const char *)group + r / 16 * half_bytes, n_blocks, r % 16, out);
}

enum { COLUMNS = 256 /* of a row, packed at once */, GROUP_BYTES = COLUMNS * MTP_GROUP_ROWS * 4 };

static void mapped_row(const mtp_matrix *w, const uint8_t *row, float *out)
{
    const int64_t block = mtp_type_block(w->type);
    _Alignas(64) uint8_t group[GROUP_BYTES];
    for (int64_t k = 0; k < w->n_cols; k += COLUMNS) {
        const int64_t n_cols = w->n_cols - k < COLUMNS ? w->n_cols - k : COLUMNS;
        mtp_pack_group(w->type, 1, n_cols, row + mtp_row_bytes(w->type, k), 0, group);
        row_of_group(w->type, group, n_cols / block, 0, out + k);
    }
}

void mtp_matrix_row(const mtp_matrix *w, int64_t row, float *out)
{
    const int64_t n_blocks = w->n_cols / mtp_type_block(w->type);
    const void *packed = w->packing ? mtp_packing_group(w->packing, row) : NULL;
    if (w->is_mapped && packed == NULL) {
        mapped_row(w, (const uint8_t *)w->data + row * mtp_row_bytes(w->type, w->n_cols), out);
        return;
    }
    const char *group = packed;
    if (group == NULL)
        group = (const char *)w->data + row / MTP_GROUP_ROWS * mtp_group_bytes(w->type, w->n_cols);
    row_of_group(w->type, group, n_blocks, (int)(row % MTP_GROUP_ROWS), out);
}
