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

static void row_q8_0(const mtp_q8_0_block *block, int64_t n_blocks, int r, float *out)
{
    for (; n_blocks > 0; n_blocks--, block++, out += 32) {
        const float scale = mtp_float_from_half(block->scale[r]);
        for (int k = 0; k < 32; k++)
            out[k] = scale * (float)(block->code[k / 4][r][k % 4] - 128);
    }
}

static void row_q4_0(const mtp_q4_0_block *block, int64_t n_blocks, int r, float *out)
{
    for (; n_blocks > 0; n_blocks--, block++, out += 32) {
        const float scale = mtp_float_from_half(block->scale[r]);
        for (int k = 0; k < 16; k++) {
            const int codes = block->code[k / 4][r][k % 4];
            out[k] = scale * (float)((codes & 15) - 8);
            out[16 + k] = scale * (float)((codes >> 4) - 8);
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
    switch (w->type) {
    case MTP_F32:
        row_f32((const float *)group, n_blocks, r, out);
        break;
    case MTP_F16:
        row_f16((const uint16_t *)group, n_blocks, r, out);
        break;
    case MTP_BF16:
        row_bf16((const uint16_t *)group, n_blocks, r, out);
        break;
    case MTP_Q8_0:
        row_q8_0((const mtp_q8_0_block *)group, n_blocks, r, out);
        break;
    case MTP_Q4_0:
        row_q4_0((const mtp_q4_0_block *)group, n_blocks, r, out);
        break;
    default: /* blocks of 256 columns */
        row_block256(w->type, (const char *)group + r / 16 * n_blocks * mtp_block256_bytes(w->type),
                     n_blocks, r % 16, out);
    }
}
