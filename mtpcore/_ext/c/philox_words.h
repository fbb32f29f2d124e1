/* Philox for sixteen tokens at once, where the machine multiplies words of 32 bits into words of 64.
 *
 * Each counter word of a token lies in the lower half of a word of 64 bits. The upper halves hold
 * what is left of products; nothing reads them. So a round is two products, two shifts and the
 * exclusive ors: no halves are packed or unpacked in between. */
#ifndef MTPCORE_PHILOX_WORDS_H
#define MTPCORE_PHILOX_WORDS_H

#if defined(__AVX512F__) || defined(__AVX2__)
#include "lanes.h"
#include "philox.h"

#define MTP_PHILOX_WORDS 16 /* tokens together */

#if defined(__AVX512F__)
typedef __m512i words;
enum { WORDS = 8 };
INLINE words words_all(uint32_t x) { return _mm512_set1_epi64((int64_t)x); }
INLINE words words_load(const uint32_t *p)
{
    return _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i *)p));
}
INLINE void words_store(uint32_t *p, words a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi64_epi32(a));
}
INLINE words words_product(words a, words b) { return _mm512_mul_epu32(a, b); }
INLINE words words_upper(words a) { return _mm512_srli_epi64(a, 32); }
INLINE words words_xor(words a, words b, words c)
{
    return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}
#else
typedef __m256i words;
enum { WORDS = 4 };
INLINE words words_all(uint32_t x) { return _mm256_set1_epi64x((int64_t)x); }
INLINE words words_load(const uint32_t *p)
{
    return _mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i *)p));
}
INLINE void words_store(uint32_t *p, words a)
{
    const __m256i lower = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    _mm_storeu_si128((__m128i *)p,
                     _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(a, lower)));
}
INLINE words words_product(words a, words b) { return _mm256_mul_epu32(a, b); }
INLINE words words_upper(words a) { return _mm256_srli_epi64(a, 32); }
INLINE words words_xor(words a, words b, words c)
{
    return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}
#endif

/* lower[i], upper[i] = the first two random words of the counter {ids[i], index, stream}; as
 * mtp_philox gives them. */
INLINE void mtp_philox_words(const uint32_t *ids, uint32_t index, uint64_t stream,
                                    uint64_t key, uint32_t *lower, uint32_t *upper)
{
    enum { GROUPS = MTP_PHILOX_WORDS / WORDS };
    const words m0 = words_all(MTP_PHILOX_M0), m1 = words_all(MTP_PHILOX_M1);
    words a[GROUPS], b[GROUPS], c[GROUPS], d[GROUPS];
    for (int g = 0; g < GROUPS; g++) {
        a[g] = words_load(ids + g * WORDS);
        b[g] = words_all(index);
        c[g] = words_all((uint32_t)stream);
        d[g] = words_all((uint32_t)(stream >> 32));
    }
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    for (int round = 0; round < MTP_PHILOX_ROUNDS; round++) {
        const words k0 = words_all(key0), k1 = words_all(key1);
        for (int g = 0; g < GROUPS; g++) {
            const words first = words_product(a[g], m0), second = words_product(c[g], m1);
            a[g] = words_xor(words_upper(second), b[g], k0);
            b[g] = second;
            c[g] = words_xor(words_upper(first), d[g], k1);
            d[g] = first;
        }
        key0 += MTP_PHILOX_W0;
        key1 += MTP_PHILOX_W1;
    }
    for (int g = 0; g < GROUPS; g++) {
        words_store(lower + g * WORDS, a[g]);
        words_store(upper + g * WORDS, b[g]);
    }
}

#endif
#endif
