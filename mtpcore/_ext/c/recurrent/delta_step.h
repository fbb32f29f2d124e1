/* The gated delta rule for sixteen columns of a head's state, which lie together: one row after
 * another, the same operations in the same order for any number of them. The definition is
 * backends/reference/arithmetic/recurrent.py. */
#ifndef MTPCORE_DELTA_STEP_H
#define MTPCORE_DELTA_STEP_H

#include "core/lanes_math.h"

enum { CHAINS = 4 };

/* Shapes of a layer's state and log. */
typedef struct {
    int64_t n_heads, n_key_heads, k_width, v_width;
    int is_tiled, by_channel, corrects;
} mtp_delta;

static inline int64_t mtp_delta_blocks(const mtp_delta *d)
{
    return (d->v_width + LANES - 1) / LANES;
}
static inline int64_t mtp_delta_decays(const mtp_delta *d)
{
    return d->by_channel ? d->k_width : 1;
}

/* Values of a base, and of a row of the log. */
static inline int64_t mtp_delta_base(const mtp_delta *d)
{
    return d->n_heads * mtp_delta_blocks(d) * d->k_width * LANES;
}
static inline int64_t mtp_delta_logged(const mtp_delta *d)
{
    return d->n_key_heads * d->k_width + d->n_heads * (d->v_width + mtp_delta_decays(d) + 1);
}

static inline int64_t mtp_delta_key_head(const mtp_delta *d, int64_t head)
{
    return d->is_tiled ? head % d->n_key_heads : head / (d->n_heads / d->n_key_heads);
}

/* What one row brings to one block: k, all decays of the head, its beta; v of the block's columns. */
typedef struct {
    const float *k, *decays;
    float beta;
    lanes v;
} delta_row;

INLINE delta_row delta_row_of_log(const mtp_delta *d, const float *row, int64_t head, int64_t block)
{
    const float *v = row + d->n_key_heads * d->k_width;
    const float *decays = v + d->n_heads * d->v_width;
    const float *beta = decays + d->n_heads * mtp_delta_decays(d);
    const int64_t column = block * LANES;
    return (delta_row){row + mtp_delta_key_head(d, head) * d->k_width,
                       decays + head * mtp_delta_decays(d), beta[head],
                       lanes_read(v + head * d->v_width + column, d->v_width - column)};
}

INLINE lanes sum_of_chains(const lanes *chains)
{
    return lanes_add(lanes_add(chains[0], chains[2]), lanes_add(chains[1], chains[3]));
}

/* A row takes two walks through a state. In the first it decays the state and sums it with k; what
 * its v differs from these sums by (from zero, where it does not correct) is the change that the
 * second one adds, and q reads what comes of it. The second walk of a row and the first of the next are one. */
typedef struct {
    const mtp_delta *d;
    const float *from;      /* where the state is read: a base, or `state` */
    float *state, *factors; /* [k_width][16]; room for k_width values in whole lanes */
    delta_row row;          /* which is begun: it has taken its first walk */
    lanes sums;
    int is_begun;
} delta_walk;

INLINE delta_walk delta_walk_from(const mtp_delta *d, const float *from, float *state,
                                  float *factors)
{
    return (delta_walk){.d = d, .from = from, .state = state, .factors = factors};
}

typedef struct {
    lanes read[CHAINS], sums[CHAINS];
} delta_chains;

/* What a walk is for: a row ends in it, q reads what it leaves, a row begins. */
typedef enum { ENDS = 1, IS_READ = 2, BEGINS = 4 } delta_purpose;

/* Entry i of the keys, and its part of a chain. */
INLINE void walk_entry(const delta_walk *w, int purpose, int64_t i, lanes change, const float *q,
                       float factor, const float *next_k, lanes *read, lanes *sum)
{
    lanes entry = lanes_load(w->from + i * LANES);
    if (purpose & ENDS)
        entry = lanes_fma(lanes_all(w->row.k[i]), change, entry);
    if (purpose & IS_READ)
        *read = lanes_fma(entry, lanes_all(q[i]), *read);
    if (purpose & BEGINS) {
        entry = lanes_mul(entry, lanes_all(factor));
        *sum = lanes_fma(entry, lanes_all(next_k[i]), *sum);
    }
    lanes_store(w->state + i * LANES, entry);
}

/* Walk once. The last entries of a key, fewer than the chains, are by themselves, so that each chain
 * stays in a register. */
INLINE delta_chains walk_once(const delta_walk *walk, int purpose, const float *q,
                              const float *next_k, int by_channel)
{
    const delta_walk w = *walk; /* stores to the state do not change it */
    const int64_t k_width = w.d->k_width, whole = k_width / CHAINS * CHAINS;
    const lanes change = lanes_mul(lanes_all(w.row.beta), lanes_sub(w.row.v, w.sums));
    const float factor = w.factors[0];
    delta_chains chains;
    for (int c = 0; c < CHAINS; c++)
        chains.read[c] = chains.sums[c] = lanes_all(0);
    for (int64_t i = 0; i < whole; i += CHAINS)
        for (int c = 0; c < CHAINS; c++)
            walk_entry(&w, purpose, i + c, change, q, by_channel ? w.factors[i + c] : factor,
                       next_k, &chains.read[c], &chains.sums[c]);
    for (int c = 0; c < CHAINS; c++)
        if (whole + c < k_width)
            walk_entry(&w, purpose, whole + c, change, q,
                       by_channel ? w.factors[whole + c] : factor, next_k, &chains.read[c],
                       &chains.sums[c]);
    return chains;
}

/* End the row that is begun, if one is, and begin `next`, if `begins`: return what q, if there is
 * one, reads between. */
INLINE lanes walk_on(delta_walk *w, const float *q, int begins, const delta_row *next,
                     int by_channel)
{
    const float *next_k = begins ? next->k : NULL;
    delta_chains chains;
    if (!w->is_begun)
        chains = walk_once(w, begins, NULL, next_k, by_channel);
    else if (!q)
        chains = walk_once(w, begins | ENDS, NULL, next_k, by_channel);
    else
        chains = walk_once(w, begins | ENDS | IS_READ, q, next_k, by_channel);
    w->from = w->state;
    w->is_begun = begins;
    if (begins)
        w->row = *next;
    w->sums = w->d->corrects ? sum_of_chains(chains.sums) : lanes_all(0);
    return sum_of_chains(chains.read);
}

/* End the row that is begun, if one is: return what q, if there is one, reads after it. */
static inline lanes delta_end(delta_walk *w, const float *q)
{
    return w->is_begun ? walk_on(w, q, 0, NULL, 0) : lanes_all(0);
}

/* The same, and begin another one. */
static inline lanes delta_begin(delta_walk *w, const float *q, const delta_row *next)
{
    if (!w->d->by_channel) {
        w->factors[0] = lanes_first(lanes_exp(lanes_all(next->decays[0])));
        return walk_on(w, q, BEGINS, next, 0);
    }
    for (int64_t i = 0; i < w->d->k_width; i += LANES)
        lanes_store(w->factors + i, lanes_exp(lanes_read(next->decays + i, w->d->k_width - i)));
    return walk_on(w, q, BEGINS, next, 1);
}

#endif
