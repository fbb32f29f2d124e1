/* Logarithm and exponential of the sampler, in double.
 *
 * Only IEEE additions, multiplications and divisions, each rounded once and none fused: the bits
 * are the same on every machine, also on those without fused multiply-add (there fma() is a slow
 * call), and a loop over them can be vectorised. libm is not used: its bits differ by version. */
#ifndef MTPCORE_LOGARITHM_H
#define MTPCORE_LOGARITHM_H

#include <stdint.h>
#include <string.h>

#include "core/exact.h"

#define MTP_LN2 0x1.62e42fefa39efp-1
#define MTP_LN2_HIGH 0x1.62e42feep-1 /* 32 bits: products with exponents are exact */
#define MTP_LN2_LOW 0x1.a39ef35793c76p-33
#define MTP_LOG2E 0x1.71547652b82fep+0
#define MTP_ROUND 0x1.8p52 /* adding it rounds to an integer, kept in the low bits */

static inline uint64_t mtp_double_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double mtp_bits_double(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* log(x) of a positive normal x, within 3 ulp: x = 2^e m with m in [sqrt(1/2), sqrt(2)),
 * log m = 2 atanh((m - 1) / (m + 1)) by its Taylor series. */
static inline double mtp_log(double x)
{
    const uint64_t bits = mtp_double_bits(x);
    const int64_t exponent = (int64_t)(bits - 0x3FE6A09E667F3BCDu) >> 52;
    const double m = mtp_bits_double(bits - ((uint64_t)exponent << 52));
    const double s = (m - 1.0) / (m + 1.0), z = s * s, e = (double)exponent;
    double p = 2.0 / 21;
    p = p * z + 2.0 / 19;
    p = p * z + 2.0 / 17;
    p = p * z + 2.0 / 15;
    p = p * z + 2.0 / 13;
    p = p * z + 2.0 / 11;
    p = p * z + 2.0 / 9;
    p = p * z + 2.0 / 7;
    p = p * z + 2.0 / 5;
    p = p * z + 2.0 / 3;
    return e * MTP_LN2_HIGH + (2.0 * s + (s * z * p + e * MTP_LN2_LOW));
}

/* exp(x) for -700 < x < 700, within 3 ulp: x = k ln 2 + r with |r| <= ln(2) / 2, exp r by its
 * Taylor series. */
static inline double mtp_exp(double x)
{
    const double shifted = x * MTP_LOG2E + MTP_ROUND, k = shifted - MTP_ROUND;
    const double r = (x - k * MTP_LN2_HIGH) - k * MTP_LN2_LOW;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    return p * mtp_bits_double((mtp_double_bits(shifted) + 1023) << 52);
}

#endif
