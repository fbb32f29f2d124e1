/* Sixteen groups of four int8 codes side by side, and sums of their products, exact in int32. */
#ifndef MTPCORE_LANES_CODES_H
#define MTPCORE_LANES_CODES_H

#include "core/lanes.h"

/* Codes lie in -127..127. whole_begin starts sums of products with four codes `q` at a time, which
 * together add up to q_sum; codes_dot adds a product to each lane. */

#if defined(__AVX512VNNI__)

typedef __m512i whole_lanes;
typedef __m512i code_lanes; /* plus 128, because the instruction takes one factor without sign */

INLINE whole_lanes whole_begin(int32_t q_sum) { return _mm512_set1_epi32(-128 * q_sum); }
INLINE code_lanes codes_load(const int8_t *p)
{
    return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8((char)0x80));
}
/* As assembly, because gcc copies each sum before the intrinsic and back after it. */
INLINE whole_lanes codes_dot(whole_lanes sum, code_lanes codes, int32_t q)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(_mm512_set1_epi32(q)));
    return sum;
}
INLINE lanes lanes_of_whole(whole_lanes a) { return _mm512_cvtepi32_ps(a); }
INLINE lanes lanes_load_codes(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

#elif defined(__AVX2__)

typedef struct {
    __m256i low, high;
} whole_lanes;
typedef whole_lanes code_lanes;

INLINE whole_lanes whole_begin(int32_t q_sum)
{
    (void)q_sum;
    return (whole_lanes){_mm256_setzero_si256(), _mm256_setzero_si256()};
}
INLINE code_lanes codes_load(const int8_t *p)
{
    return (code_lanes){_mm256_loadu_si256((const __m256i *)p),
                        _mm256_loadu_si256((const __m256i *)(p + 32))};
}
/* |q| times the codes with q's signs; two products add up to at most 2 * 127 * 127 < 2^15. */
INLINE __m256i half_dot(__m256i sum, __m256i codes, __m256i q)
{
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(codes, q));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
INLINE whole_lanes codes_dot(whole_lanes sum, code_lanes codes, int32_t q)
{
    const __m256i all = _mm256_set1_epi32(q);
    return (whole_lanes){half_dot(sum.low, codes.low, all), half_dot(sum.high, codes.high, all)};
}
INLINE lanes lanes_of_whole(whole_lanes a)
{
    return (lanes){_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)};
}
INLINE lanes lanes_load_codes(const int8_t *p)
{
    return (lanes){
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))),
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)))),
    };
}

#elif defined(__ARM_FEATURE_DOTPROD)

typedef struct {
    int32x4_t of[4];
} whole_lanes;
typedef struct {
    int8x16_t of[4];
} code_lanes;

INLINE whole_lanes whole_begin(int32_t q_sum)
{
    (void)q_sum;
    return (whole_lanes){{vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)}};
}
INLINE code_lanes codes_load(const int8_t *p)
{
    return (code_lanes){{vld1q_s8(p), vld1q_s8(p + 16), vld1q_s8(p + 32), vld1q_s8(p + 48)}};
}
INLINE whole_lanes codes_dot(whole_lanes sum, code_lanes codes, int32_t q)
{
    const int8x16_t all = vreinterpretq_s8_s32(vdupq_n_s32(q));
    for (int i = 0; i < 4; i++)
        sum.of[i] = vdotq_s32(sum.of[i], codes.of[i], all);
    return sum;
}
INLINE lanes lanes_of_whole(whole_lanes a) { EACH_REGISTER(vcvtq_f32_s32(a.of[i])); }
INLINE lanes lanes_load_codes(const int8_t *p)
{
    const int8x16_t codes = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(codes)), high = vmovl_high_s8(codes);
    return lanes_of_whole((whole_lanes){{vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low),
                                         vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)}});
}

#else

typedef struct {
    int32_t at[LANES];
} whole_lanes;
typedef struct {
    int8_t at[LANES][4];
} code_lanes;

INLINE whole_lanes whole_begin(int32_t q_sum)
{
    (void)q_sum;
    return (whole_lanes){{0}};
}
INLINE code_lanes codes_load(const int8_t *p)
{
    code_lanes codes;
    memcpy(codes.at, p, sizeof codes.at);
    return codes;
}
INLINE whole_lanes codes_dot(whole_lanes sum, code_lanes codes, int32_t q)
{
    int8_t factors[4];
    memcpy(factors, &q, sizeof factors);
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < 4; j++)
            sum.at[i] += codes.at[i][j] * factors[j];
    return sum;
}
INLINE lanes lanes_of_whole(whole_lanes a)
{
    lanes r;
    for (int i = 0; i < LANES; i++)
        r.at[i] = (float)a.at[i];
    return r;
}
INLINE lanes lanes_load_codes(const int8_t *p)
{
    lanes r;
    for (int i = 0; i < LANES; i++)
        r.at[i] = (float)p[i];
    return r;
}

#endif
#endif
