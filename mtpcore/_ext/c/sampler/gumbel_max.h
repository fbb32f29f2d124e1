/* The Gumbel-max trick: of all tokens the one with the largest logit / temperature + noise.
 * Noise is drawn only where it could still win. */
#ifndef MTPCORE_SAMPLER_GUMBEL_MAX_H
#define MTPCORE_SAMPLER_GUMBEL_MAX_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "core/cpu.h"
#include "sampler/philox.h"
#include "sampler/passes.h"

#define XTC_COIN -1        /* drawn like a token's noise; no token has this id */
#define LARGEST_NOISE 36.8 /* -log(2^-53) and a little */

static const mtp_sampler_passes *passes(void)
{
#if defined(__x86_64__)
    static const mtp_sampler_passes *const table[MTP_ISA_COUNT] = {
        [MTP_ISA_BASE] = &mtp_sampler_passes_base,
        [MTP_ISA_AVX2] = &mtp_sampler_passes_avx2,
        [MTP_ISA_AVXVNNI] = &mtp_sampler_passes_avx2,
        [MTP_ISA_AVX512] = &mtp_sampler_passes_avx512,
        [MTP_ISA_AMX] = &mtp_sampler_passes_avx512};
    return table[mtp_isa()];
#elif defined(__aarch64__)
    return mtp_isa() >= MTP_ISA_NEON ? &mtp_sampler_passes_neon : &mtp_sampler_passes_base;
#else
    return &mtp_sampler_passes_base;
#endif
}

/* A number in (0, 1). */
static inline double uniform(uint64_t bits) { return ((double)(bits >> 12) + 0.5) * 0x1p-52; }

static inline double gumbel(uint64_t bits) { return -mtp_log(-mtp_log(uniform(bits))); }

static inline uint64_t noise_bits(const mtp_noise *noise, int32_t id)
{
    uint32_t counter[4] = {(uint32_t)id, noise->index, (uint32_t)noise->stream,
                           (uint32_t)(noise->stream >> 32)};
    mtp_philox(counter, noise->seed);
    return (uint64_t)counter[1] << 32 | counter[0];
}

/* The winners so far: the best scores, largest first; of equal ones the lowest row first. */
typedef struct {
    const mtp_noise *noise;
    double inverse;    /* 1 / temperature */
    int64_t places, n; /* wanted, taken */
    double *scores;
    int32_t *rows;
} gumbel_max;

static inline double score_to_reach(const gumbel_max *state)
{
    return state->n < state->places ? -INFINITY : state->scores[state->n - 1];
}

static inline int is_ahead(const gumbel_max *state, double score, int32_t row, int64_t of)
{
    return score > state->scores[of] || (score == state->scores[of] && row < state->rows[of]);
}

static inline void enter(gumbel_max *state, double score, int32_t row)
{
    if (state->n == state->places && !is_ahead(state, score, row, state->n - 1))
        return;
    int64_t at = state->n < state->places ? state->n++ : state->n - 1;
    for (; at > 0 && is_ahead(state, score, row, at - 1); at--) {
        state->scores[at] = state->scores[at - 1];
        state->rows[at] = state->rows[at - 1];
    }
    state->scores[at] = score;
    state->rows[at] = row;
}

/* Up to 64 tokens whose noise is drawn together. */
typedef struct {
    float logits[MTP_CHUNK];
    uint32_t ids[MTP_CHUNK];
    int64_t n;
} candidates;

/* Draw their noise and keep the best: they are rows[0 .. n), or `first` and the following if
 * rows is NULL. */
static void try_candidates(gumbel_max *state, candidates *all, const int32_t *rows, int64_t first)
{
    uint32_t lower[MTP_CHUNK], upper[MTP_CHUNK];
    for (int64_t j = all->n; j < MTP_CHUNK; j++) {
        all->logits[j] = -INFINITY;
        all->ids[j] = 0;
    }
    const double least = score_to_reach(state);
    if (!passes()->draw(all->logits, all->ids, state->noise, state->inverse, least, lower, upper))
        return;
    for (int64_t j = 0; j < all->n; j++) {
        const double scaled = (double)all->logits[j] * state->inverse;
        if (!(scaled + mtp_noise_bound(upper[j]) >= score_to_reach(state)))
            continue;
        if (!(all->logits[j] > -INFINITY))
            continue;
        enter(state, scaled + gumbel((uint64_t)upper[j] << 32 | lower[j]),
              rows ? rows[j] : (int32_t)(first + j));
    }
}

/* The same for rows first .. first + n, 64 at most, whose logits follow each other. */
static void try_chunk(gumbel_max *state, const float *logits, const int32_t *token_ids,
                      int64_t first, int64_t n)
{
    candidates all;
    all.n = n;
    memcpy(all.logits, logits, (size_t)n * sizeof(float));
    for (int64_t j = 0; j < n; j++)
        all.ids[j] = (uint32_t)(token_ids ? token_ids[first + j] : (int32_t)(first + j));
    try_candidates(state, &all, NULL, first);
}

/* Whether none of 64 rows can win, whatever noise they draw. */
static inline int cannot_win(const gumbel_max *state, float largest)
{
    return (double)largest * state->inverse + LARGEST_NOISE <= score_to_reach(state);
}

#endif
