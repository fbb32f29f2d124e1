/* 16-bit floats to float32 in portable C; both conversions are exact. */
#ifndef MTPCORE_FLOAT16_H
#define MTPCORE_FLOAT16_H

#include <stdint.h>
#include <string.h>

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

static inline float mtp_float_from_bfloat16(uint16_t bfloat16)
{
    return mtp_float_from_bits((uint32_t)bfloat16 << 16);
}

#endif
