/* Quantise blocks of activations to int8; one plain body, compiled for each instruction set.
 *
 * The largest takes code 127. Of all scales for the codes that were found the one is kept that
 * leaves the least squared error, sum(x q) / sum(q q): it takes away the part of the error that
 * lies along the codes, a 32nd of it in blocks of 32.
 *
 * Only exact or correctly rounded operations are used (comparison, division, multiplication,
 * rounding to nearest even; sums of integers), so every compilation gives the same bits.
 */
#ifndef MTPCORE_QUANTISE_H
#define MTPCORE_QUANTISE_H

#include <float.h>

#include "core/float16.h"

/* Blocks whose scales are made together: each waits for sums, and a division, of its own. */
enum { MTP_BLOCKS_ABREAST = 16 };

/* Codes of n_blocks blocks of n values, minus the sums of 16 codes each, and a scale a block; at
 * most MTP_BLOCKS_ABREAST blocks. A block with a NaN or an infinity gets the scale NaN, which no
 * matmul can lose. */
typedef void (*mtp_quantise)(const float *x, int n, int n_blocks, int8_t *codes,
                             int32_t *minus_sums, float *scales);

extern const mtp_quantise mtp_quantise_portable, mtp_quantise_avx2, mtp_quantise_avx512;
extern const mtp_quantise mtp_quantise_neon;

/* Adding 1.5 * 2^23 leaves the nearest integer (ties to even) in the low mantissa bits; exact for
 * |x| < 2^22 and vectorised without an instruction for rounding. */
static inline int32_t mtp_nearest_integer(float x)
{
    return (int32_t)(mtp_bits_from_float(x + 0x1.8p23f) - 0x4b400000u);
}

static inline __attribute__((always_inline)) int32_t sum_of_16(const int32_t *x)
{
    int32_t sum = 0;
    for (int i = 0; i < 16; i++)
        sum += x[i];
    return sum;
}

/* The same where there are few: gcc unrolls the loop before it can vectorise it, and adds one by
 * one, unless it is told not to; many sums it makes side by side. */
static inline __attribute__((always_inline)) int32_t sum_of_16_alone(const int32_t *x)
{
    int32_t sum = 0;
#pragma GCC unroll 1
    for (int i = 0; i < 16; i++)
        sum += x[i];
    return sum;
}

/* What rounding leaves, up to a half, is counted in these steps to a whole. */
#define MTP_REST_STEPS 0x1p14f

static inline __attribute__((always_inline)) uint32_t largest_magnitude(const float *x, const int n)
{
    uint32_t largest = 0; /* bits of |x| order as integers, with NaN above infinity */
    for (int i = 0; i < n; i++) {
        const uint32_t magnitude = mtp_bits_from_float(x[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

/* Codes of a block, and with what they leave (`along` them) and their squares the scale that fits. */
static inline __attribute__((always_inline)) void
make_codes(const float *restrict x, const int n, float inverse, int8_t *restrict codes,
           int32_t *restrict minus_sums, int32_t *restrict along, int32_t *restrict square)
{
    int32_t rounded[256], rest[256]; /* separate plain loops, which compilers vectorise */
    for (int i = 0; i < n; i++) {
        const float exact = x[i] * inverse;
        rounded[i] = mtp_nearest_integer(exact);
        rest[i] = mtp_nearest_integer((exact - (float)rounded[i]) * MTP_REST_STEPS);
    }
    for (int i = 0; i < n; i++)
        codes[i] = (int8_t)rounded[i];
    for (int s = 0; s < n / 16; s++)
        minus_sums[s] = -(n > 64 ? sum_of_16(rounded + 16 * s) : sum_of_16_alone(rounded + 16 * s));
    int32_t of_rest = 0, of_codes = 0; /* below 256 * 127 * 2^13 < 2^29 */
    for (int i = 0; i < n; i++) {
        of_rest += rest[i] * rounded[i];
        of_codes += rounded[i] * rounded[i];
    }
    *along = of_rest, *square = of_codes;
}

/* As mtp_quantise, up to `abreast` blocks: constants, so that loops have a length. */
static inline __attribute__((always_inline)) void
mtp_quantise_blocks(const float *restrict x, const int n, const int abreast, const int n_blocks,
                    int8_t *restrict codes, int32_t *restrict minus_sums, float *restrict scales)
{
    uint32_t largest[MTP_BLOCKS_ABREAST] = {0};
    float scale[MTP_BLOCKS_ABREAST], inverse[MTP_BLOCKS_ABREAST], fitted[MTP_BLOCKS_ABREAST];
    int32_t along[MTP_BLOCKS_ABREAST] = {0}, square[MTP_BLOCKS_ABREAST] = {0};
    for (int b = 0; b < n_blocks; b++)
        largest[b] = largest_magnitude(x + b * n, n);
    for (int b = 0; b < abreast; b++) {
        scale[b] = mtp_float_from_bits(largest[b]) / 127.0f;
        inverse[b] = 127.0f / mtp_float_from_bits(largest[b]);
    }
    for (int b = 0; b < n_blocks; b++) {
        int8_t *own_codes = codes + b * n;
        int32_t *own_sums = minus_sums + b * n / 16;
        if (scale[b] >= FLT_MIN && scale[b] <= FLT_MAX) {
            make_codes(x + b * n, n, inverse[b], own_codes, own_sums, along + b, square + b);
        } else { /* all but zero, or not finite */
            memset(own_codes, 0, (size_t)n);
            memset(own_sums, 0, (size_t)n / 16 * sizeof *own_sums);
        }
    }
    for (int b = 0; b < abreast; b++) {
        const float part = (float)along[b] / ((float)square[b] * MTP_REST_STEPS);
        fitted[b] = scale[b] + scale[b] * part;
    }
    for (int b = 0; b < n_blocks; b++)
        if (scale[b] >= FLT_MIN && scale[b] <= FLT_MAX)
            scales[b] = fitted[b] < FLT_MIN ? FLT_MIN : fitted[b];
        else
            scales[b] = largest[b] < 0x7f800000u ? 0.0f : mtp_float_from_bits(0x7fc00000u);
}

/* Constant lengths let the compiler unroll. */
#define MTP_DEFINE_QUANTISE(isa)                                                                   \
    static void quantise(const float *x, int n, int n_blocks, int8_t *codes, int32_t *minus_sums,  \
                         float *scales)                                                            \
    {                                                                                              \
        if (n == 32)                                                                               \
            mtp_quantise_blocks(x, 32, MTP_BLOCKS_ABREAST, n_blocks, codes, minus_sums, scales);   \
        else                                                                                       \
            mtp_quantise_blocks(x, 256, MTP_BLOCKS_ABREAST, n_blocks, codes, minus_sums, scales);  \
    }                                                                                              \
    const mtp_quantise mtp_quantise_##isa = quantise;

#endif
