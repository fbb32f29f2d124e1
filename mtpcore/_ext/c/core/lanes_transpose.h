/* Sixteen rows of sixteen values, transposed: value j of row i becomes value i of row j. */
#ifndef MTPCORE_LANES_TRANSPOSE_H
#define MTPCORE_LANES_TRANSPOSE_H

#include "core/lanes.h"

#if defined(__AVX512F__)

/* Pairs of values, then of pairs, inside each quarter of a register; then the quarters. */
INLINE void lanes_transpose(lanes rows[LANES])
{
    __m512 pairs[LANES], fours[LANES], halves[LANES];
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
#define PAIR(f, a, b) _mm512_castpd_ps(f(_mm512_castps_pd(a), _mm512_castps_pd(b)))
    for (int i = 0; i < LANES; i += 4) {
        fours[i] = PAIR(_mm512_unpacklo_pd, pairs[i], pairs[i + 2]);
        fours[i + 1] = PAIR(_mm512_unpackhi_pd, pairs[i], pairs[i + 2]);
        fours[i + 2] = PAIR(_mm512_unpacklo_pd, pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = PAIR(_mm512_unpackhi_pd, pairs[i + 1], pairs[i + 3]);
    }
#undef PAIR
    for (int i = 0; i < 4; i++)
        for (int half = 0; half < 2; half++) {
            const __m512 a = fours[8 * half + i], b = fours[8 * half + 4 + i];
            halves[8 * half + i] = _mm512_shuffle_f32x4(a, b, 0x88);
            halves[8 * half + 4 + i] = _mm512_shuffle_f32x4(a, b, 0xdd);
        }
    for (int i = 0; i < 4; i++) {
        rows[i] = _mm512_shuffle_f32x4(halves[i], halves[8 + i], 0x88);
        rows[8 + i] = _mm512_shuffle_f32x4(halves[i], halves[8 + i], 0xdd);
        rows[4 + i] = _mm512_shuffle_f32x4(halves[4 + i], halves[12 + i], 0x88);
        rows[12 + i] = _mm512_shuffle_f32x4(halves[4 + i], halves[12 + i], 0xdd);
    }
}

#elif defined(__ARM_FEATURE_DOTPROD)

/* Register `part` of four rows, transposed 4 x 4. */
INLINE void transpose_four(const lanes *rows, int part, float32x4_t to[4])
{
#define PAIR(f, a, b) vreinterpretq_f64_f32(f(rows[a].of[part], rows[b].of[part]))
    const float64x2_t a = PAIR(vtrn1q_f32, 0, 1), b = PAIR(vtrn2q_f32, 0, 1);
    const float64x2_t c = PAIR(vtrn1q_f32, 2, 3), d = PAIR(vtrn2q_f32, 2, 3);
#undef PAIR
    to[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
    to[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
    to[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
    to[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
}

/* Squares of four by four values, each transposed, and exchanged with the one across. */
INLINE void lanes_transpose(lanes rows[LANES])
{
    for (int i = 0; i < 4; i++)
        for (int j = 0; j <= i; j++) {
            float32x4_t below[4], above[4];
            transpose_four(rows + 4 * i, j, below);
            transpose_four(rows + 4 * j, i, above);
            for (int k = 0; k < 4; k++) {
                rows[4 * j + k].of[i] = below[k];
                rows[4 * i + k].of[j] = above[k];
            }
        }
}

#else

INLINE void lanes_transpose(lanes rows[LANES])
{
    float from[LANES][LANES], to[LANES][LANES];
    for (int i = 0; i < LANES; i++)
        lanes_store(from[i], rows[i]);
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < LANES; j++)
            to[j][i] = from[i][j];
    for (int i = 0; i < LANES; i++)
        rows[i] = lanes_load(to[i]);
}

#endif
#endif
