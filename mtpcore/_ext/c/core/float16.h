/* 16-bit floats to float32 in portable C (exact), and back (to the nearest, half to even). */
#ifndef MTPCORE_FLOAT16_H
#define MTPCORE_FLOAT16_H

#include <stdint.h>
#include <string.h>

#include "core/exact.h"

static inline float mtp_float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t mtp_bits_from_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float mtp_float_from_half(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 31u, fraction = half & 1023u;
    if (exponent == 31)
        return mtp_float_from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0)
        return mtp_float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    const float magnitude = (float)fraction * 0x1p-24f; /* subnormal half, normal float */
    return sign ? -magnitude : magnitude;
}

static inline uint16_t mtp_half_from_float(float value)
{
    const uint32_t bits = mtp_bits_from_float(value), sign = bits >> 16 & 0x8000u;
    const uint32_t size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) /* not a number */
        return (uint16_t)(sign | 0x7e00u | (size >> 13 & 0x3ffu));
    if (size >= 0x477ff000u) /* 65520 and more */
        return (uint16_t)(sign | 0x7c00u);
    if (size < 0x38800000u) /* subnormal: the sum with 1/2 has the spacing of subnormal halves */
        return (uint16_t)(sign | (mtp_bits_from_float(mtp_float_from_bits(size) + 0.5f) -
                                  mtp_bits_from_float(0.5f)));
    return (uint16_t)(sign | (((size + 0xfffu + (size >> 13 & 1u)) >> 13) - (112u << 10)));
}

static inline float mtp_float_from_bfloat16(uint16_t bfloat16)
{
    return mtp_float_from_bits((uint32_t)bfloat16 << 16);
}

#endif
