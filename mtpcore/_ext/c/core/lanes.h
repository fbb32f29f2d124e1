/* Sixteen float32 values side by side: one AVX-512 register, two of AVX2, four of NEON, or an array.
 *
 * Everything that is not a matmul is written once over these lanes and compiled for each
 * instruction set. The array version is the definition; each function is one correctly rounded
 * operation a lane, so that all of them give the same bits.
 */
#ifndef MTPCORE_LANES_H
#define MTPCORE_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "core/float16.h"

enum { LANES = 16 };

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include <immintrin.h>

typedef __m512 lanes;

INLINE lanes lanes_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void lanes_store(float *p, lanes a) { _mm512_storeu_ps(p, a); }
INLINE void lanes_stream(float *p, lanes a) { _mm512_stream_ps(p, a); }
INLINE lanes lanes_all(float x) { return _mm512_set1_ps(x); }
INLINE lanes lanes_add(lanes a, lanes b) { return _mm512_add_ps(a, b); }
INLINE lanes lanes_sub(lanes a, lanes b) { return _mm512_sub_ps(a, b); }
INLINE lanes lanes_mul(lanes a, lanes b) { return _mm512_mul_ps(a, b); }
INLINE lanes lanes_div(lanes a, lanes b) { return _mm512_div_ps(a, b); }
INLINE lanes lanes_sqrt(lanes a) { return _mm512_sqrt_ps(a); }
INLINE lanes lanes_fma(lanes a, lanes b, lanes c) { return _mm512_fmadd_ps(a, b, c); }
INLINE lanes lanes_larger(lanes a, lanes b) { return _mm512_max_ps(a, b); }
INLINE lanes lanes_if_less(lanes a, lanes b, lanes x, lanes y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
INLINE lanes lanes_power_of_two(lanes t)
{
    const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(127 << 23)));
}
INLINE lanes lanes_load_half(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
INLINE void lanes_store_half(uint16_t *p, lanes a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
INLINE lanes lanes_load_some(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
INLINE void lanes_store_some(float *p, lanes a, int64_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a);
}

#else
#if defined(__AVX2__)
#include <immintrin.h>

typedef struct {
    __m256 low, high;
} lanes;

INLINE lanes lanes_load(const float *p)
{
    return (lanes){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
INLINE void lanes_store(float *p, lanes a)
{
    _mm256_storeu_ps(p, a.low);
    _mm256_storeu_ps(p + 8, a.high);
}
INLINE void lanes_stream(float *p, lanes a)
{
    _mm256_stream_ps(p, a.low);
    _mm256_stream_ps(p + 8, a.high);
}
INLINE lanes lanes_all(float x) { return (lanes){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE lanes lanes_add(lanes a, lanes b)
{
    return (lanes){_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
INLINE lanes lanes_sub(lanes a, lanes b)
{
    return (lanes){_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
INLINE lanes lanes_mul(lanes a, lanes b)
{
    return (lanes){_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
INLINE lanes lanes_div(lanes a, lanes b)
{
    return (lanes){_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
INLINE lanes lanes_sqrt(lanes a) { return (lanes){_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)}; }
INLINE lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return (lanes){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
INLINE lanes lanes_larger(lanes a, lanes b)
{
    return (lanes){_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
INLINE lanes lanes_if_less(lanes a, lanes b, lanes x, lanes y)
{
    return (lanes){
        _mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
        _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)),
    };
}
INLINE __m256 half_power_of_two(__m256 t)
{
    const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(127 << 23)));
}
INLINE lanes lanes_power_of_two(lanes t)
{
    return (lanes){half_power_of_two(t.low), half_power_of_two(t.high)};
}
INLINE lanes lanes_load_half(const uint16_t *p)
{
    return (lanes){
        _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
        _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))),
    };
}
INLINE void lanes_store_half(uint16_t *p, lanes a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT));
}

#elif defined(__ARM_FEATURE_DOTPROD) /* what setup.py asks for */
#include <arm_neon.h>

typedef struct {
    float32x4_t of[4];
} lanes;

#define EACH_REGISTER(expression)                                                                  \
    lanes r;                                                                                       \
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) r.of[i] = (expression);                    \
    return r

INLINE lanes lanes_load(const float *p) { EACH_REGISTER(vld1q_f32(p + 4 * i)); }
INLINE void lanes_store(float *p, lanes a)
{
    for (int i = 0; i < 4; i++)
        vst1q_f32(p + 4 * i, a.of[i]);
}
INLINE lanes lanes_all(float x) { EACH_REGISTER(vdupq_n_f32(x)); }
INLINE lanes lanes_add(lanes a, lanes b) { EACH_REGISTER(vaddq_f32(a.of[i], b.of[i])); }
INLINE lanes lanes_sub(lanes a, lanes b) { EACH_REGISTER(vsubq_f32(a.of[i], b.of[i])); }
INLINE lanes lanes_mul(lanes a, lanes b) { EACH_REGISTER(vmulq_f32(a.of[i], b.of[i])); }
INLINE lanes lanes_div(lanes a, lanes b) { EACH_REGISTER(vdivq_f32(a.of[i], b.of[i])); }
INLINE lanes lanes_sqrt(lanes a) { EACH_REGISTER(vsqrtq_f32(a.of[i])); }
INLINE lanes lanes_fma(lanes a, lanes b, lanes c)
{
    EACH_REGISTER(vfmaq_f32(c.of[i], a.of[i], b.of[i]));
}
INLINE lanes lanes_larger(lanes a, lanes b)
{
    EACH_REGISTER(vbslq_f32(vcgtq_f32(a.of[i], b.of[i]), a.of[i], b.of[i]));
}
INLINE lanes lanes_if_less(lanes a, lanes b, lanes x, lanes y)
{
    EACH_REGISTER(vbslq_f32(vcltq_f32(a.of[i], b.of[i]), x.of[i], y.of[i]));
}
INLINE float32x4_t four_powers_of_two(float32x4_t t)
{
    const uint32x4_t n = vshlq_n_u32(vreinterpretq_u32_f32(t), 23);
    return vreinterpretq_f32_u32(vaddq_u32(n, vdupq_n_u32(127u << 23)));
}
INLINE lanes lanes_power_of_two(lanes t) { EACH_REGISTER(four_powers_of_two(t.of[i])); }
INLINE lanes lanes_load_half(const uint16_t *p)
{
    EACH_REGISTER(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
INLINE void lanes_store_half(uint16_t *p, lanes a)
{
    for (int i = 0; i < 4; i++)
        vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.of[i])));
}

#else

typedef struct {
    float at[LANES];
} lanes;

#define EACH_LANE(expression)                                                                      \
    lanes r;                                                                                       \
    for (int i = 0; i < LANES; i++)                                                                \
        r.at[i] = (expression);                                                                    \
    return r

INLINE lanes lanes_load(const float *p) { EACH_LANE(p[i]); }
INLINE void lanes_store(float *p, lanes a) { memcpy(p, a.at, sizeof a.at); }
INLINE lanes lanes_all(float x) { EACH_LANE(x); }
INLINE lanes lanes_add(lanes a, lanes b) { EACH_LANE(a.at[i] + b.at[i]); }
INLINE lanes lanes_sub(lanes a, lanes b) { EACH_LANE(a.at[i] - b.at[i]); }
INLINE lanes lanes_mul(lanes a, lanes b) { EACH_LANE(a.at[i] * b.at[i]); }
INLINE lanes lanes_div(lanes a, lanes b) { EACH_LANE(a.at[i] / b.at[i]); }
INLINE lanes lanes_sqrt(lanes a) { EACH_LANE(sqrtf(a.at[i])); }
INLINE lanes lanes_fma(lanes a, lanes b, lanes c) { EACH_LANE(fmaf(a.at[i], b.at[i], c.at[i])); }
/* b where one of them is not a number. */
INLINE lanes lanes_larger(lanes a, lanes b) { EACH_LANE(a.at[i] > b.at[i] ? a.at[i] : b.at[i]); }
/* a < b ? x : y */
INLINE lanes lanes_if_less(lanes a, lanes b, lanes x, lanes y)
{
    EACH_LANE(a.at[i] < b.at[i] ? x.at[i] : y.at[i]);
}
/* 2^n, where n is what the low bits of t = 1.5 * 2^23 + n hold, -126 <= n <= 128 (infinity). */
INLINE lanes lanes_power_of_two(lanes t)
{
    EACH_LANE(mtp_float_from_bits((mtp_bits_from_float(t.at[i]) << 23) + (127u << 23)));
}
INLINE lanes lanes_load_half(const uint16_t *p) { EACH_LANE(mtp_float_from_half(p[i])); }
INLINE void lanes_store_half(uint16_t *p, lanes a)
{
    for (int i = 0; i < LANES; i++)
        p[i] = mtp_half_from_float(a.at[i]);
}

#endif

/* The first n values of p, zeros after them; n from 0 to 16. */
INLINE lanes lanes_load_some(const float *p, int64_t n)
{
    float all[LANES] = {0};
    memcpy(all, p, (size_t)n * sizeof *p);
    return lanes_load(all);
}
INLINE void lanes_store_some(float *p, lanes a, int64_t n)
{
    float all[LANES];
    lanes_store(all, a);
    memcpy(p, all, (size_t)n * sizeof *p);
}
#endif

/* Where stores need not read what they write over, and leave nothing in the caches: p is on a line,
 * and others see the values after lanes_end_streams. */
#if defined(__AVX2__)
INLINE void lanes_end_streams(void) { _mm_sfence(); }
#else
INLINE void lanes_stream(float *p, lanes a) { lanes_store(p, a); }
INLINE void lanes_end_streams(void) {}
#endif

INLINE lanes lanes_read(const float *p, int64_t n)
{
    return n >= LANES ? lanes_load(p) : lanes_load_some(p, n);
}

INLINE void lanes_write(float *p, lanes a, int64_t n)
{
    if (n >= LANES)
        lanes_store(p, a);
    else
        lanes_store_some(p, a, n);
}

INLINE float lanes_first(lanes a)
{
    float at[LANES];
    lanes_store(at, a);
    return at[0];
}

/* Fold all lanes by `f` (a scalar function), and by its vector form where there is one: lane i with
 * lane i + 8, then i + 4, i + 2, i + 1. */
#if defined(__AVX2__)
#define FOLD(a, f, vector)                                                                         \
    const __m256 eight = _mm256_##vector(HALVES(a));                                               \
    const __m128 four =                                                                            \
        _mm_##vector(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));              \
    const __m128 two = _mm_##vector(four, _mm_movehl_ps(four, four));                              \
    return _mm_cvtss_f32(_mm_##vector(two, _mm_movehdup_ps(two)))
#if defined(__AVX512F__)
#define HALVES(a) _mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)
#else
#define HALVES(a) a.low, a.high
#endif
#elif defined(__ARM_FEATURE_DOTPROD)
INLINE float32x4_t add_ps(float32x4_t a, float32x4_t b) { return vaddq_f32(a, b); }
INLINE float32x4_t max_ps(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
#define FOLD(a, f, vector)                                                                         \
    const float32x4_t four = vector(vector(a.of[0], a.of[2]), vector(a.of[1], a.of[3]));           \
    const float32x4_t two = vector(four, vextq_f32(four, four, 2));                                \
    return f(vgetq_lane_f32(two, 0), vgetq_lane_f32(two, 1))
#else
#define FOLD(a, f, vector)                                                                         \
    for (int half = LANES / 2; half > 0; half /= 2)                                                \
        for (int i = 0; i < half; i++)                                                             \
            a.at[i] = f(a.at[i], a.at[i + half]);                                                  \
    return a.at[0]
#endif

INLINE float sum_of_two(float a, float b) { return a + b; }
INLINE float larger_of_two(float a, float b) { return a > b ? a : b; }

INLINE float lanes_sum(lanes a) { FOLD(a, sum_of_two, add_ps); }
INLINE float lanes_largest(lanes a) { FOLD(a, larger_of_two, max_ps); }

#endif
