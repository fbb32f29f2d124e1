/* The nearest integer, halves to even, by adding 1.5 * 2^23: the low 23 bits of the sum, less 2^22.
 *
 * Beyond 2^22 the bits say something else, and so does ggml's nearest_int: rows of values so small
 * that a quotient overflows are rare, and are encoded as ggml encodes them.
 */
#ifndef MTPCORE_ENCODE_NEAREST_H
#define MTPCORE_ENCODE_NEAREST_H

#include "core/lanes.h"

INLINE int32_t nearest(float x)
{
    return (int32_t)(mtp_bits_from_float(x + 0x1.8p23f) & 0x7fffffu) - 0x400000;
}

#if defined(__AVX512F__)
INLINE lanes lanes_nearest(lanes a)
{
    const __m512i bits = _mm512_castps_si512(_mm512_add_ps(a, _mm512_set1_ps(0x1.8p23f)));
    const __m512i low = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffff));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(low, _mm512_set1_epi32(0x400000)));
}
#elif defined(__AVX2__)
INLINE __m256 half_nearest(__m256 a)
{
    const __m256i bits = _mm256_castps_si256(_mm256_add_ps(a, _mm256_set1_ps(0x1.8p23f)));
    const __m256i low = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffff));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(low, _mm256_set1_epi32(0x400000)));
}
INLINE lanes lanes_nearest(lanes a) { return (lanes){half_nearest(a.low), half_nearest(a.high)}; }
#elif defined(__ARM_FEATURE_DOTPROD)
INLINE float32x4_t four_nearest(float32x4_t a)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(vaddq_f32(a, vdupq_n_f32(0x1.8p23f)));
    const uint32x4_t low = vandq_u32(bits, vdupq_n_u32(0x7fffff));
    return vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(low), vdupq_n_s32(0x400000)));
}
INLINE lanes lanes_nearest(lanes a) { EACH_REGISTER(four_nearest(a.of[i])); }
#else
INLINE lanes lanes_nearest(lanes a) { EACH_LANE((float)nearest(a.at[i])); }
#endif

#endif
