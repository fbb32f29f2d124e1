/* The sampler's passes over a whole vocabulary, one table for each instruction set.
 *
 * Their results are maxima, sums of integers and random integers, which have no order: any width
 * of vector gives the same bits. */
#ifndef MTPCORE_SAMPLER_PASSES_H
#define MTPCORE_SAMPLER_PASSES_H

#include <stdint.h>

#include "core/logarithm.h"

#define MTP_CHUNK 64 /* rows looked at together */

/* Probabilities are counted in units of 2^-40 of the likeliest token's. */
#define MTP_MASS_BITS 40
#define MTP_MASS_ONE ((uint64_t)1 << MTP_MASS_BITS)

/* exp(gap) in units, rounded to nearest; 0 for NaN. */
static inline uint64_t mtp_count(double gap)
{
    gap = gap > -40.0 ? gap : -40.0;
    const double counted = mtp_exp(gap) * (double)MTP_MASS_ONE + 0x1p52;
    return mtp_double_bits(counted) - 0x4330000000000000u;
}

/* The probability of a logit in units. */
static inline uint64_t mtp_mass(float logit, float max)
{
    return logit == max ? MTP_MASS_ONE : mtp_count((double)logit - (double)max);
}

/* Upper bound of the Gumbel noise -log(-log u) of bits whose upper word is given: -log u is at
 * least 1 - u, at least y 2^-24 with the upper 24 bits inverted as y; and the bits of a float, read
 * as an integer, are 2^23 (127 + log2 y) or less, since log2 is above its chords. */
static inline double mtp_noise_bound(uint32_t upper)
{
    const float y = (float)(int32_t)(~upper >> 8);
    int32_t bits;
    memcpy(&bits, &y, sizeof bits);
    return (24 + 127) * MTP_LN2 + 1e-9 - (double)bits * (MTP_LN2 / (1 << 23));
}

/* Key and counter words shared by all tokens of one choice. */
typedef struct {
    uint64_t seed, stream;
    uint32_t index;
} mtp_noise;

typedef struct {
    /* maxima[c] = the largest of logits [64 c, 64 c + 64), -inf where there is none. */
    void (*maxima)(const float *logits, int64_t n_vocab, float *maxima);
    /* Sum of mtp_mass over the vocabulary. */
    uint64_t (*total_mass)(const float *logits, int64_t n_vocab, float max);
    /* lower[i], upper[i] = the random bits of token ids[i]; returns whether any
     * logits[i] * inverse + mtp_noise_bound(upper[i]) is at least `best`. */
    int (*draw)(const float *restrict logits, const uint32_t *restrict ids, const mtp_noise *noise,
                double inverse, double best, uint32_t *restrict lower, uint32_t *restrict upper);
} mtp_sampler_passes;

extern const mtp_sampler_passes mtp_sampler_passes_base;
#if defined(__x86_64__)
extern const mtp_sampler_passes mtp_sampler_passes_avx2, mtp_sampler_passes_avx512;
#elif defined(__aarch64__)
extern const mtp_sampler_passes mtp_sampler_passes_neon;
#endif

#endif
