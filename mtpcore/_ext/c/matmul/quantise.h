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

/* codes[n] and minus the sums of 16 codes each; returns the scale. A block with a NaN or an
 * infinity gets the scale NaN, which no matmul can lose. */
typedef float (*mtp_quantise)(const float *x, int n, int8_t *codes, int32_t *minus_sums);

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

static inline
    __attribute__((always_inline)) float mtp_quantise_block(const float *restrict x, const int n,
                                                            int8_t *restrict codes,
                                                            int32_t *restrict minus_sums)
{
    uint32_t largest = 0; /* bits of |x| order as integers, with NaN above infinity */
    for (int i = 0; i < n; i++) {
        const uint32_t magnitude = mtp_bits_from_float(x[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    const float scale = mtp_float_from_bits(largest) / 127.0f;
    const float inverse = 127.0f / mtp_float_from_bits(largest);
    if (!(scale >= FLT_MIN && scale <= FLT_MAX)) { /* all but zero, or not finite */
        memset(codes, 0, (size_t)n);
        memset(minus_sums, 0, (size_t)n / 16 * sizeof *minus_sums);
        return largest < 0x7f800000u ? 0.0f : mtp_float_from_bits(0x7fc00000u);
    }
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
    int32_t along = 0, square = 0; /* below 256 * 127 * 2^13 < 2^29 */
    for (int i = 0; i < n; i++) {
        along += rest[i] * rounded[i];
        square += rounded[i] * rounded[i];
    }
    const float fitted = scale + scale * ((float)along / ((float)square * MTP_REST_STEPS));
    return fitted < FLT_MIN ? FLT_MIN : fitted;
}

/* Constant lengths let the compiler unroll. */
#define MTP_DEFINE_QUANTISE(isa)                                                                   \
    static float quantise(const float *x, int n, int8_t *codes, int32_t *minus_sums)               \
    {                                                                                              \
        return n == 32 ? mtp_quantise_block(x, 32, codes, minus_sums)                              \
                       : mtp_quantise_block(x, 256, codes, minus_sums);                            \
    }                                                                                              \
    const mtp_quantise mtp_quantise_##isa = quantise;

#endif
