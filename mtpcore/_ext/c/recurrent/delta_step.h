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
    int is_tiled, by_channel;
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

/* The sums of k, taken with the decayed state. */
INLINE void add_products(lanes *chain, const float *state, float factor, float k)
{
    *chain = lanes_fma(lanes_mul(lanes_load(state), lanes_all(factor)), lanes_all(k), *chain);
}

/* The state behind a row, and its part of the result. */
INLINE void update(lanes *chain, float *state, float factor, float k, lanes change, const float *q)
{
    const lanes decayed = lanes_mul(lanes_load(state), lanes_all(factor));
    const lanes now = lanes_fma(lanes_all(k), change, decayed);
    lanes_store(state, now);
    if (q)
        *chain = lanes_fma(now, lanes_all(*q), *chain);
}

/* Take a row into a state [k_width][16] and return what q reads of it then; `factors` are the
 * exponentials of its decays. The last entries of a key, fewer than the chains, are by themselves, so
 * that each chain stays in a register. */
INLINE lanes delta_advance(float *state, int64_t k_width, int by_channel, const float *factors,
                           const delta_row *row, const float *q)
{
    const int64_t whole = k_width / CHAINS * CHAINS;
    lanes sums[CHAINS], chains[CHAINS];
    for (int c = 0; c < CHAINS; c++)
        sums[c] = chains[c] = lanes_all(0);
    for (int64_t i = 0; i < whole; i += CHAINS)
        for (int c = 0; c < CHAINS; c++)
            add_products(&sums[c], state + (i + c) * LANES, factors[by_channel ? i + c : 0],
                         row->k[i + c]);
    for (int c = 0; c < CHAINS; c++)
        if (whole + c < k_width)
            add_products(&sums[c], state + (whole + c) * LANES, factors[by_channel ? whole + c : 0],
                         row->k[whole + c]);
    const lanes change = lanes_mul(lanes_all(row->beta), lanes_sub(row->v, sum_of_chains(sums)));
    for (int64_t i = 0; i < whole; i += CHAINS)
        for (int c = 0; c < CHAINS; c++)
            update(&chains[c], state + (i + c) * LANES, factors[by_channel ? i + c : 0],
                   row->k[i + c], change, q ? q + i + c : NULL);
    for (int c = 0; c < CHAINS; c++)
        if (whole + c < k_width)
            update(&chains[c], state + (whole + c) * LANES, factors[by_channel ? whole + c : 0],
                   row->k[whole + c], change, q ? q + whole + c : NULL);
    return sum_of_chains(chains);
}

/* One row for one block; `factors` has room for k_width values in whole lanes. */
INLINE lanes delta_take(const mtp_delta *d, float *state, float *factors, const delta_row *row,
                        const float *q)
{
    if (!d->by_channel) {
        factors[0] = lanes_first(lanes_exp(lanes_all(row->decays[0])));
        return q ? delta_advance(state, d->k_width, 0, factors, row, q)
                 : delta_advance(state, d->k_width, 0, factors, row, NULL);
    }
    for (int64_t i = 0; i < d->k_width; i += LANES)
        lanes_store(factors + i, lanes_exp(lanes_read(row->decays + i, d->k_width - i)));
    return delta_advance(state, d->k_width, 1, factors, row, q);
}

#endif
