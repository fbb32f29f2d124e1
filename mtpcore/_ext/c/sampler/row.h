/* A row of logits in the chain, and the working memory of a choice. For the sampler alone. */
#ifndef MTPCORE_SAMPLER_ROW_H
#define MTPCORE_SAMPLER_ROW_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "sampler/sampler.h"
#include "sampler/passes.h"

/* One row of logits on its way through the chain. */
typedef struct {
    const float *logits;
    int64_t n_vocab;
    const int32_t *token_ids;
    mtp_sampler_scratch *scratch;
} logits_row;

/* What one thread finds in its share of a row. */
typedef struct {
    int64_t chunk; /* the first of those with the largest logit */
    uint64_t mass;
    double score; /* of the row that wins in it */
    int32_t winner;
} part;

struct mtp_sampler_scratch {
    int64_t n_ids;
    /* The choice in progress: */
    logits_row row;
    const mtp_sampling *sampling;
    int64_t index;
    int needs_total;
    part parts[MTP_CHOICE_PARTS];
    /* Working memory: */
    float *logits;   /* [n_vocab] after bias, penalties and mask */
    float *maxima;   /* [chunks] */
    float *keys;     /* [n_vocab] how typical a row is */
    int32_t *order;  /* [n_vocab] heap of rows, then the survivors */
    int32_t *counts; /* [n_vocab] 2 * occurrences in the text + (occurs in the prompt); kept zero */
    int32_t *rows;   /* [n_ids] row of a token id, valid if token_ids maps it back */
};

static inline int32_t token_id(const logits_row *row, int64_t i)
{
    return row->token_ids ? row->token_ids[i] : (int32_t)i;
}

/* The row of a token id, -1 if there is none. Entries of `rows` left by another map are harmless:
 * they do not map back. */
static inline int64_t find_row(const logits_row *row, int32_t id)
{
    if (id < 0)
        return -1;
    if (!row->token_ids)
        return id < row->n_vocab ? id : -1;
    if (id >= row->scratch->n_ids)
        return -1;
    const int32_t i = row->scratch->rows[id];
    return i < row->n_vocab && row->token_ids[i] == id ? i : -1;
}

static inline int allows(const uint32_t *mask, int32_t id)
{
    return !mask || (mask[id >> 5] >> (id & 31) & 1);
}

/* Whether the choice depends on more than one logit at a time. */
static int has_cuts(const mtp_sampling *sampling)
{
    return sampling->top_k > 0 || sampling->top_p < 1.0 || sampling->min_p > 0.0 ||
           sampling->top_n_sigma > 0.0 || sampling->typical_p < 1.0 ||
           sampling->xtc_probability > 0.0 || sampling->dynatemp_range > 0.0;
}

/* How many of the first of n tokens are not among the latest. */
static inline int64_t skip_to_latest(int64_t n, int64_t last_n)
{
    return last_n >= 0 && last_n < n ? n - last_n : 0;
}

#endif
