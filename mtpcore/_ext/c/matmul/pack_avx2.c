#include <immintrin.h>
#include <stdint.h>

/* Each half of a register holds 4 words of one row; transposed 4 x 4 in place, 4 rows of one
 * word. */
static inline void pack_words(const uint8_t *from, int64_t row_bytes, uint8_t *to,
                              int64_t line_bytes)
{
    for (int half = 0; half < 2; half++, from += 8 * row_bytes, to += 32) {
        __m256i row[4];
        for (int i = 0; i < 4; i++)
            row[i] = _mm256_loadu2_m128i((const __m128i *)(from + (i + 4) * row_bytes),
                                         (const __m128i *)(from + i * row_bytes));
        const __m256i a = _mm256_unpacklo_epi32(row[0], row[1]);
        const __m256i b = _mm256_unpacklo_epi32(row[2], row[3]);
        const __m256i c = _mm256_unpackhi_epi32(row[0], row[1]);
        const __m256i d = _mm256_unpackhi_epi32(row[2], row[3]);
        _mm256_storeu_si256((__m256i *)to, _mm256_unpacklo_epi64(a, b));
        _mm256_storeu_si256((__m256i *)(to + line_bytes), _mm256_unpackhi_epi64(a, b));
        _mm256_storeu_si256((__m256i *)(to + 2 * line_bytes), _mm256_unpacklo_epi64(c, d));
        _mm256_storeu_si256((__m256i *)(to + 3 * line_bytes), _mm256_unpackhi_epi64(c, d));
    }
}

#include "matmul/pack.inc"

PACKERS(avx2)
