/* The chain's first part: logit bias, penalties and mask. For the sampler alone. */
#ifndef MTPCORE_SAMPLER_ADJUST_H
#define MTPCORE_SAMPLER_ADJUST_H

#include "sampler/dry.h"
#include "sampler/row.h"

static int has_penalties(const mtp_sampling *sampling)
{
    return sampling->repetition_penalty != 1.0 || sampling->frequency_penalty != 0.0 ||
           sampling->presence_penalty != 0.0 || sampling->dry.multiplier > 0.0;
}

static void penalise(const logits_row *row, const mtp_sampling *sampling, const int32_t *history,
                     int64_t n_history, int64_t n_prompt)
{
    int32_t *counts = row->scratch->counts;
    const int64_t skipped = skip_to_latest(n_history, sampling->penalty_last_n);
    history += skipped, n_history -= skipped, n_prompt -= skipped;
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
    if (penalties && sampling->dry.multiplier > 0.0)
        lower_repetitions(row, &sampling->dry, history, n_history);
    if (sampling->mask)
        for (int64_t i = 0; i < row->n_vocab; i++)
            if (!allows(sampling->mask, token_id(row, i)))
                adjusted[i] = -INFINITY;
}

#endif
