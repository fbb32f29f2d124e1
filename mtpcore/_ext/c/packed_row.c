/* One row of a packed matrix as float32, in the operation order of the format's definition. */
#include <string.h>

#include "float16.h"
#include "matmul_layout.h"

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

void mtp_packed_row(const mtp_matrix *w, int64_t row, float *out)
{
    const uint8_t *group = (const uint8_t *)w->data +
                           row / MTP_GROUP_ROWS * mtp_group_bytes(w->type, w->n_cols);
    const int64_t n_blocks = w->n_cols / mtp_type_block(w->type);
    const int r = (int)(row % MTP_GROUP_ROWS);
    const int64_t half_bytes = n_blocks * mtp_block256_bytes(w->type);
    switch (w->type) {
    case MTP_F32:
        row_f32((const float *)group, n_blocks, r, out);
        return;
    case MTP_F16:
        row_f16((const uint16_t *)group, n_blocks, r, out);
        return;
    case MTP_BF16:
        row_bf16((const uint16_t *)group, n_blocks, r, out);
        return;
    }
    if (mtp_type_block(w->type) == 32)
        row_block32(w->type, (const char *)group, n_blocks, r, out);
    else
        row_block256(w->type, (const char *)group + r / 16 * half_bytes, n_blocks, r % 16, out);
}
