/* A row of logits in the chain, the working memory of a choice, and the chain's first part: logit
 * bias, penalties and mask. For the sampler alone. */
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

static int has_cuts(const mtp_sampling *sampling)
{
    return sampling->top_k > 0 || sampling->top_p < 1.0 || sampling->min_p > 0.0;
}

static int has_penalties(const mtp_sampling *sampling)
{
    return sampling->repetition_penalty != 1.0 || sampling->frequency_penalty != 0.0 ||
           sampling->presence_penalty != 0.0;
}

static void penalise(const logits_row *row, const mtp_sampling *sampling, const int32_t *history,
                     int64_t n_history, int64_t n_prompt)
{
    int32_t *counts = row->scratch->counts;
    for (int64_t i = 0; i < n_history; i++) {
        const int64_t found = find_row(row, history[i]);
        if (found < 0)
            continue;
        counts[found] = i < n_prompt ? counts[found] | 1 : counts[found] + 2;
    }
    for (int64_t i = 0; i < n_history; i++) {
        const int64_t found = find_row(row, history[i]);
        if (found < 0 || counts[found] == 0)
            continue; /* each token once */
        const int32_t n_text = counts[found] >> 1;
        counts[found] = 0;
        double logit = row->scratch->logits[found];
        logit = logit > 0.0 ? logit / sampling->repetition_penalty
                            : logit * sampling->repetition_penalty;
        if (n_text > 0)
            logit -= n_text * sampling->frequency_penalty + sampling->presence_penalty;
        row->scratch->logits[found] = (float)logit;
    }
}

/* Point row->logits at an adjusted copy, if there is anything to adjust. */
static void adjust(logits_row *row, const mtp_sampling *sampling, const int32_t *history,
                   int64_t n_history, int64_t n_prompt)
{
    const int penalties = n_history > 0 && has_penalties(sampling);
    if (sampling->n_bias == 0 && !penalties && !sampling->mask)
        return;
    float *adjusted = row->scratch->logits;
    memcpy(adjusted, row->logits, (size_t)row->n_vocab * sizeof(float));
    row->logits = adjusted;
    if (row->token_ids)
        for (int64_t i = 0; i < row->n_vocab; i++)
            row->scratch->rows[row->token_ids[i]] = (int32_t)i;
    for (int64_t i = 0; i < sampling->n_bias; i++) {
        const int64_t found = find_row(row, sampling->bias_ids[i]);
        if (found >= 0)
            adjusted[found] += sampling->bias[i];
    }
    if (penalties)
        penalise(row, sampling, history, n_history, n_prompt);
    if (sampling->mask)
        for (int64_t i = 0; i < row->n_vocab; i++)
            if (!allows(sampling->mask, token_id(row, i)))
                adjusted[i] = -INFINITY;
}

#endif
