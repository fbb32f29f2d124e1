/* A choice as a race: each token starts at its logit / temperature and draws its noise; the best
 * scores win. */
#ifndef MTPCORE_SAMPLER_RACE_H
#define MTPCORE_SAMPLER_RACE_H

#include <math.h>
#include <stdint.h>

#include "philox.h"
#include "sampler_passes.h"

static inline double gumbel(uint64_t bits) {
    const double u = ((double)(bits >> 12) + 0.5) * 0x1p-52;
    return -mtp_log(-mtp_log(u));
}

static inline uint64_t noise_bits(const mtp_noise *noise, int32_t id) {
    uint32_t counter[4] = {(uint32_t)id, noise->index, (uint32_t)noise->stream,
                           (uint32_t)(noise->stream >> 32)};
    mtp_philox(counter, noise->seed);
    return (uint64_t)counter[1] << 32 | counter[0];
}

/* The race so far: the best scores, largest first; of equal ones the lowest row first. */
typedef struct {
    const mtp_noise *noise;
    double inverse;    /* 1 / temperature */
    int64_t places, n; /* wanted, taken */
    double *scores;
    int32_t *rows;
} race;

static inline double score_to_reach(const race *state) {
    return state->n < state->places ? -INFINITY : state->scores[state->n - 1];
}

static inline int is_ahead(const race *state, double score, int32_t row, int64_t of) {
    return score > state->scores[of] || (score == state->scores[of] && row < state->rows[of]);
}

static inline void enter(race *state, double score, int32_t row) {
    if (state->n == state->places && !is_ahead(state, score, row, state->n - 1)) return;
    int64_t at = state->n < state->places ? state->n++ : state->n - 1;
    for (; at > 0 && is_ahead(state, score, row, at - 1); at--) {
        state->scores[at] = state->scores[at - 1];
        state->rows[at] = state->rows[at - 1];
    }
    state->scores[at] = score;
    state->rows[at] = row;
}

#endif
