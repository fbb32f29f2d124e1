/* The gated delta rule for sixteen columns of a head's state, which lie together: one row after
 * another, the same operations in the same order for any number of them. The definition is
 * backends/reference/arithmetic/recurrent.py. */
#ifndef MTPCORE_DELTA_STEP_H
#define MTPCORE_DELTA_STEP_H

#include "core/lanes_math.h"

enum { CHAINS = 4 };

/* What has a decay of its own: a head, an entry of its key, or a column of its state. Decays of
 * columns are multiplied by rates, one of each entry of a state. */
typedef enum { DECAY_BY_HEAD, DECAY_BY_CHANNEL, DECAY_BY_COLUMN, DECAYS } delta_decays;

/* Shapes of a layer's state and log, and its rates, which lie as a base does. */
typedef struct {
    int64_t n_heads, n_key_heads, k_width, v_width;
    int is_tiled, decays, corrects;
    const float *rates;
} mtp_delta;

static inline int64_t mtp_delta_blocks(const mtp_delta *d)
{
    return (d->v_width + LANES - 1) / LANES;
}
static inline int64_t mtp_delta_decays(const mtp_delta *d)
{
    return d->decays == DECAY_BY_COLUMN    ? d->v_width
           : d->decays == DECAY_BY_CHANNEL ? d->k_width
                                           : 1;
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

/* What one row brings to one block: k, all decays of the head, its beta; v of the block's columns,
 * and their decays where they have some. */
typedef struct {
    const float *k, *decays;
    float beta;
    lanes v, columns;
} delta_row;

INLINE delta_row delta_row_from(const mtp_delta *d, const float *k, const float *v,
                                const float *decays, float beta, int64_t block)
{
    const int64_t column = block * LANES, left = d->v_width - column;
    const int by_column = d->decays == DECAY_BY_COLUMN;
    return (delta_row){k, decays, beta, lanes_read(v + column, left),
                       by_column ? lanes_read(decays + column, left) : lanes_all(0)};
}

INLINE delta_row delta_row_of_log(const mtp_delta *d, const float *row, int64_t head, int64_t block)
{
    const float *v = row + d->n_key_heads * d->k_width;
    const float *decays = v + d->n_heads * d->v_width;
    const float *beta = decays + d->n_heads * mtp_delta_decays(d);
    return delta_row_from(d, row + mtp_delta_key_head(d, head) * d->k_width, v + head * d->v_width,
                          decays + head * mtp_delta_decays(d), beta[head], block);
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
    const float *rates;     /* those of the block, or NULL */
    float *state, *factors; /* [k_width][16] */
    delta_row row;          /* which is begun: it has taken its first walk */
    lanes sums;
    int is_begun;
} delta_walk;

/* The walk through the block that begins with value `at` of a base. */
INLINE delta_walk delta_walk_from(const mtp_delta *d, int64_t at, const float *from, float *state,
                                  float *factors)
{
    return (delta_walk){.d = d,
                        .from = from,
                        .rates = d->rates ? d->rates + at : NULL,
                        .state = state,
                        .factors = factors};
}

typedef struct {
    lanes read[CHAINS], sums[CHAINS];
} delta_chains;

/* What a walk is for: a row ends in it, q reads what it leaves, a row begins. */
typedef enum { ENDS = 1, IS_READ = 2, BEGINS = 4 } delta_purpose;

/* What entry i of each column decays by; the first factor is that of a whole head. */
INLINE lanes factor_of(const delta_walk *w, delta_decays decays, int64_t i, lanes first)
{
    return decays == DECAY_BY_COLUMN    ? lanes_load(w->factors + i * LANES)
           : decays == DECAY_BY_CHANNEL ? lanes_all(w->factors[i])
                                        : first;
}

/* Entry i of the keys, and its part of a chain. */
INLINE void walk_entry(const delta_walk *w, int purpose, int64_t i, lanes change, const float *q,
                       lanes factor, const float *next_k, lanes *read, lanes *sum)
{
    lanes entry = lanes_load(w->from + i * LANES);
    if (purpose & ENDS)
        entry = lanes_fma(lanes_all(w->row.k[i]), change, entry);
    if (purpose & IS_READ)
        *read = lanes_fma(entry, lanes_all(q[i]), *read);
    if (purpose & BEGINS) {
        entry = lanes_mul(entry, factor);
        *sum = lanes_fma(entry, lanes_all(next_k[i]), *sum);
    }
    lanes_store(w->state + i * LANES, entry);
}

/* Walk once. The last entries of a key, fewer than the chains, are by themselves, so that each chain
 * stays in a register. */
INLINE delta_chains walk_once(const delta_walk *walk, int purpose, const float *q,
                              const float *next_k, delta_decays decays)
{
    const delta_walk w = *walk; /* stores to the state do not change it */
    const int64_t k_width = w.d->k_width, whole = k_width / CHAINS * CHAINS;
    const lanes change = lanes_mul(lanes_all(w.row.beta), lanes_sub(w.row.v, w.sums));
    const lanes first = lanes_all(w.factors[0]);
    delta_chains chains;
    for (int c = 0; c < CHAINS; c++)
        chains.read[c] = chains.sums[c] = lanes_all(0);
    for (int64_t i = 0; i < whole; i += CHAINS)
        for (int c = 0; c < CHAINS; c++)
            walk_entry(&w, purpose, i + c, change, q, factor_of(&w, decays, i + c, first), next_k,
                       &chains.read[c], &chains.sums[c]);
    for (int c = 0; c < CHAINS; c++)
        if (whole + c < k_width)
            walk_entry(&w, purpose, whole + c, change, q, factor_of(&w, decays, whole + c, first),
                       next_k, &chains.read[c], &chains.sums[c]);
    return chains;
}

/* End the row that is begun, if one is, and begin `next`, if `begins`: return what q, if there is
 * one, reads between. */
INLINE lanes walk_on(delta_walk *w, const float *q, int begins, const delta_row *next,
                     delta_decays decays)
{
    const float *next_k = begins ? next->k : NULL;
    delta_chains chains;
    if (!w->is_begun)
        chains = walk_once(w, begins, NULL, next_k, decays);
    else if (!q)
        chains = walk_once(w, begins | ENDS, NULL, next_k, decays);
    else
        chains = walk_once(w, begins | ENDS | IS_READ, q, next_k, decays);
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
    return w->is_begun ? walk_on(w, q, 0, NULL, DECAY_BY_HEAD) : lanes_all(0);
}

/* The same, and begin another one. */
static inline lanes delta_begin(delta_walk *w, const float *q, const delta_row *next)
{
    const int64_t k_width = w->d->k_width;
    if (w->d->decays == DECAY_BY_HEAD) {
        w->factors[0] = lanes_first(lanes_exp(lanes_all(next->decays[0])));
        return walk_on(w, q, BEGINS, next, DECAY_BY_HEAD);
    }
    if (w->d->decays == DECAY_BY_CHANNEL) {
        for (int64_t i = 0; i < k_width; i += LANES)
            lanes_store(w->factors + i, lanes_exp(lanes_read(next->decays + i, k_width - i)));
        return walk_on(w, q, BEGINS, next, DECAY_BY_CHANNEL);
    }
    for (int64_t i = 0; i < k_width; i++)
        lanes_store(w->factors + i * LANES,
                    lanes_exp(lanes_mul(next->columns, lanes_load(w->rates + i * LANES))));
    return walk_on(w, q, BEGINS, next, DECAY_BY_COLUMN);
}

#endif
