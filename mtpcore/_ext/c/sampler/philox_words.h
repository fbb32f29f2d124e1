/* Philox for sixteen tokens at once, where the machine multiplies words of 32 bits into words of
 * 64.
 *
 * Each counter word of a token lies in the lower half of a word of 64 bits. The upper halves hold
 * what is left of products; nothing reads them. So a round is two products, two shifts and the
 * exclusive ors: no halves are packed or unpacked in between. */
#ifndef MTPCORE_PHILOX_WORDS_H
#define MTPCORE_PHILOX_WORDS_H

#if defined(__AVX512F__) || defined(__AVX2__)
#include "core/lanes.h"
#include "sampler/philox.h"

#define MTP_PHILOX_WORDS 16 /* tokens together */

#if defined(__AVX512F__)
typedef __m512i words;
typedef __m256i lower_halves;
#define OF_WORDS(function) _mm512_##function
INLINE lower_halves words_lower(words a) { return _mm512_cvtepi64_epi32(a); }
INLINE words words_xor(words a, words b, words c)
{
    return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}
#else
typedef __m256i words;
typedef __m128i lower_halves;
#define OF_WORDS(function) _mm256_##function
INLINE lower_halves words_lower(words a)
{
    const __m256i lower = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    return _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(a, lower));
}
INLINE words words_xor(words a, words b, words c)
{
    return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}
#endif

enum { WORDS = sizeof(lower_halves) / sizeof(uint32_t) };

INLINE words words_all(uint32_t x) { return OF_WORDS(set1_epi32)((int32_t)x); }
INLINE words words_product(words a, words b) { return OF_WORDS(mul_epu32)(a, b); }
INLINE words words_upper(words a) { return OF_WORDS(srli_epi64)(a, 32); }
INLINE words words_load(const uint32_t *p)
{
    lower_halves lower;
    memcpy(&lower, p, sizeof lower);
    return OF_WORDS(cvtepu32_epi64)(lower);
}
INLINE void words_store(uint32_t *p, words a)
{
    const lower_halves lower = words_lower(a);
    memcpy(p, &lower, sizeof lower);
}
#undef OF_WORDS

/* lower[i], upper[i] = the first two random words of the counter {ids[i], index, stream}; as
 * mtp_philox gives them. */
INLINE void mtp_philox_words(const uint32_t *ids, uint32_t index, uint64_t stream, uint64_t key,
                             uint32_t *lower, uint32_t *upper)
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
