/* The kernels in plain C: the definition that the other instruction sets repeat bit for bit. */
#include <math.h>
#include <string.h>

#include "core/float16.h"
#include "matmul/kernels.h"

/* One NaN for all: which operand's payload survives differs between instructions. */
static void store(float value, float *out)
{
    *out = isnan(value) ? mtp_float_from_bits(0x7fc00000u) : value;
}

static float word_as_float(const int32_t *word)
{
    float value;
    memcpy(&value, word, sizeof value);
    return value;
}

/* The sum over `n` codes (a multiple of 4) of weights times the codes of one token of a tile. */
static int32_t dot(const int8_t *weights, const int32_t *words, int n_tokens, int n)
{
    int32_t sum = 0;
    for (int k = 0; k < n; k += 4) {
        int8_t codes[4];
        memcpy(codes, words + k / 4 * n_tokens, 4);
        for (int i = 0; i < 4; i++)
            sum += weights[k + i] * codes[i];
    }
    return sum;
}

#define FLOAT_KERNEL(name, type, to_float)                                                         \
    static void name(int n_tokens, const void *group, int64_t n_blocks, const void *tile,          \
                     float (*out)[32])                                                             \
    {                                                                                              \
        for (int row = 0; row < 32; row++) {                                                       \
            const type *weights = (const type *)group + row;                                       \
            for (int t = 0; t < n_tokens; t++) {                                                   \
                const float *x = (const float *)tile + t;                                          \
                float sum = 0.0f;                                                                  \
                for (int64_t k = 0; k < n_blocks; k++)                                             \
                    sum = fmaf(to_float(weights[k * 32]), x[k * n_tokens], sum);                   \
                store(sum, &out[t][row]);                                                          \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    MTP_KERNELS_8(name, portable)

FLOAT_KERNEL(f32, float, )
FLOAT_KERNEL(f16, uint16_t, mtp_float_from_half)
FLOAT_KERNEL(bf16, uint16_t, mtp_float_from_bfloat16)

/* Per block of 32: scale * sum of codes + min * sum of activations */
MTP_ALWAYS_INLINE void block32(const int type, int n_tokens, const void *group, int64_t n_blocks,
                               const void *tile, float (*out)[32])
{
    for (int row = 0; row < 32; row++) {
        const char *block = group;
        const int32_t *words = tile;
        float sum[MTP_TILE] = {0};
        for (int64_t b = 0; b < n_blocks; b++) {
            const float scale = mtp_block32_scale(type, block, row);
            int8_t weights[32];
#pragma GCC unroll 32
            for (int k = 0; k < 32; k++) /* places in a block become constants */
                weights[k] = (int8_t)mtp_block32_code(type, block, k, row);
            for (int t = 0; t < n_tokens; t++) {
                const int32_t minus_sum = words[MTP_ACT32_MINUS_SUM * n_tokens + t];
                const float x_scale = word_as_float(words + MTP_ACT32_SCALE * n_tokens + t);
                const int32_t integers = dot(weights, words + t, n_tokens, 32);
                sum[t] = fmaf((float)integers, scale * x_scale, sum[t]);
                if (mtp_block32_has_min(type))
                    sum[t] = fmaf(-(float)minus_sum, mtp_block32_min(block, row) * x_scale, sum[t]);
            }
            block += mtp_block32_bytes(type);
            words += MTP_ACT32_WORDS * n_tokens;
        }
        for (int t = 0; t < n_tokens; t++)
            store(sum[t], &out[t][row]);
    }
}

/* Per block of 256: scale * sum of (sub-block scale * codes) - min * sum of (sub-block min * 1) */
MTP_ALWAYS_INLINE void block256(const int type, int n_tokens, const void *group, int64_t n_blocks,
                                const void *tile, float (*out)[32])
{
    const int64_t block_bytes = mtp_block256_bytes(type);
    for (int row = 0; row < 32; row++) {
        const char *block = (const char *)group + row / 16 * n_blocks * block_bytes;
        const int32_t *words = tile;
        const int r = row % 16;
        float sum[MTP_TILE] = {0};
        for (int64_t b = 0; b < n_blocks; b++) {
            const float scale = mtp_block256_scale(type, block, r);
            int8_t weights[256];
            for (int k = 0; k < 256; k++)
                weights[k] = (int8_t)mtp_block256_code(type, block, k, r);
            for (int t = 0; t < n_tokens; t++) {
                const int32_t *minus_sums = words + MTP_ACT256_MINUS_SUM * n_tokens + t;
                const float x_scale = word_as_float(words + MTP_ACT256_SCALE * n_tokens + t);
                int32_t integers = 0, mins = 0;
                for (int s = 0; s < 16; s++)
                    integers += mtp_sub_scale(type, block, s, r) *
                                dot(weights + 16 * s, words + 4 * s * n_tokens + t, n_tokens, 16);
                sum[t] = fmaf((float)integers, scale * x_scale, sum[t]);
                if (!mtp_block256_has_min(type))
                    continue;
                for (int s = 0; s < 16; s++)
                    mins -= mtp_sub_min(type, block, s, r) * minus_sums[s * n_tokens];
                sum[t] = fmaf(-(float)mins, mtp_block256_min(block, r) * x_scale, sum[t]);
            }
            block += block_bytes;
            words += MTP_ACT256_WORDS * n_tokens;
        }
        for (int t = 0; t < n_tokens; t++)
            store(sum[t], &out[t][row]);
    }
}

#define BLOCK_KERNEL(name, type, block, most)                                                      \
    static void name(int n_tokens, const void *group, int64_t n_blocks, const void *tile,          \
                     float (*out)[32])                                                             \
    {                                                                                              \
        block(type, n_tokens, group, n_blocks, tile, out);                                         \
    }                                                                                              \
    MTP_KERNELS_##most(name, portable)

/* By the size of a type's blocks; the float types are above. */
#define KERNEL_1(name, type)
#define KERNEL_32(name, type) BLOCK_KERNEL(name, type, block32, 8)
#define KERNEL_256(name, type) BLOCK_KERNEL(name, type, block256, 4)
#define KERNEL(_, NAME, name, number, block, ...) KERNEL_##block(name, MTP_##NAME)
MTP_WEIGHT_TYPES(KERNEL, )
