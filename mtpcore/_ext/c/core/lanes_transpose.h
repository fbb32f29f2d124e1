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
