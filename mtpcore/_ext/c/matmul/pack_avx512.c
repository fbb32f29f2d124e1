#include <immintrin.h>
#include <stdint.h>

static inline __m128i words_at(const uint8_t *from)
{
    return _mm_loadu_si128((const __m128i *)from);
}

/* Each quarter of a register holds 4 words of one row; transposed 4 x 4 in place, 4 rows of a
 * word. */
static inline void pack_words(const uint8_t *from, int64_t row_bytes, uint8_t *to,
                              int64_t line_bytes)
{
    __m512i row[4];
    for (int i = 0; i < 4; i++, from += row_bytes) {
        const __m512i first = _mm512_castsi128_si512(words_at(from));
        row[i] = _mm512_inserti32x4(first, words_at(from + 4 * row_bytes), 1);
        row[i] = _mm512_inserti32x4(row[i], words_at(from + 8 * row_bytes), 2);
        row[i] = _mm512_inserti32x4(row[i], words_at(from + 12 * row_bytes), 3);
    }
    const __m512i a = _mm512_unpacklo_epi32(row[0], row[1]);
    const __m512i b = _mm512_unpacklo_epi32(row[2], row[3]);
    const __m512i c = _mm512_unpackhi_epi32(row[0], row[1]);
    const __m512i d = _mm512_unpackhi_epi32(row[2], row[3]);
    _mm512_storeu_si512(to, _mm512_unpacklo_epi64(a, b));
    _mm512_storeu_si512(to + line_bytes, _mm512_unpackhi_epi64(a, b));
    _mm512_storeu_si512(to + 2 * line_bytes, _mm512_unpacklo_epi64(c, d));
    _mm512_storeu_si512(to + 3 * line_bytes, _mm512_unpackhi_epi64(c, d));
}

#include "matmul/pack.inc"

PACKERS(avx512)
