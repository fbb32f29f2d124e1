/* The sampler's passes over a whole vocabulary, one table for each instruction set.
 *
 * Their results are maxima, sums of integers and random integers, which have no order: any width
 * of vector gives the same bits. */
#ifndef MTPCORE_SAMPLER_PASSES_H
#define MTPCORE_SAMPLER_PASSES_H

#include <stdint.h>

#include "logarithm.h"

#define MTP_CHUNK 64 /* rows looked at together */

/* Probabilities are counted in units of 2^-40 of the likeliest token's. */
#define MTP_MASS_BITS 40
#define MTP_MASS_ONE ((uint64_t)1 << MTP_MASS_BITS)

/* exp(logit - max) in units, rounded to nearest; 0 for NaN. */
static inline uint64_t mtp_mass(float logit, float max) {
    double gap = (double)logit - (double)max;
    gap = logit == max ? 0.0 : gap; /* also where both are infinite */
    gap = gap > -40.0 ? gap : -40.0;
    const double counted = mtp_exp(gap) * (double)MTP_MASS_ONE + 0x1p52;
    return mtp_double_bits(counted) - 0x4330000000000000u;
}

/* Key and counter words shared by all tokens of one choice. */
typedef struct {
    uint64_t seed, stream;
    uint32_t index;
} mtp_noise;

typedef struct {
    const char *name;
    /* maxima[c] = the largest of logits [64 c, 64 c + 64), -inf where there is none. */
    void (*maxima)(const float *logits, int64_t n_vocab, float *maxima);
    /* Sum of mtp_mass over the vocabulary. */
    uint64_t (*total_mass)(const float *logits, int64_t n_vocab, float max);
    /* bits[i] = 64 random bits of token ids[i]; returns whether any logits[i] * inverse + Gumbel
     * noise may exceed `best` (never 0 where one does). */
    int (*draw)(const float logits[MTP_CHUNK], const uint32_t ids[MTP_CHUNK],
                const mtp_noise *noise, double inverse, double best, uint64_t bits[MTP_CHUNK]);
} mtp_sampler_passes;

extern const mtp_sampler_passes mtp_sampler_passes_base;

#endif
