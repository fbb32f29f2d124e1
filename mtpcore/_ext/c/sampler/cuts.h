/* The chain's second part: top_k, top_p and min_p. For sampler.c alone. */
#ifndef MTPCORE_SAMPLER_CUTS_H
#define MTPCORE_SAMPLER_CUTS_H

#include "sampler/heap.h"
#include "sampler/row.h"

static int64_t count_chunks(const logits_row *row)
{
    return (row->n_vocab + MTP_CHUNK - 1) / MTP_CHUNK;
}

/* A logit that no survivor of top_k falls below: of chunks' maxima the k-th largest has k - 1
 * tokens of other chunks above it. */
static float kth_maximum(const logits_row *row, int64_t k)
{
    const int64_t n_chunks = count_chunks(row);
    if (k >= n_chunks)
        return -INFINITY;
    int32_t *heap = row->scratch->order;
    for (int64_t i = 0; i < n_chunks; i++)
        heap[i] = (int32_t)i;
    heapify(heap, n_chunks, row->scratch->maxima);
    int32_t chunk = 0;
    for (int64_t i = 0; i < k; i++)
        chunk = pop(heap, n_chunks - i, row->scratch->maxima);
    return row->scratch->maxima[chunk];
}

/* Put the rows that pass the cuts into scratch->order[returned .. *n); `total` is the whole mass
 * (only top_p reads it). */
static int64_t cut(const logits_row *row, const mtp_sampling *sampling, float max, uint64_t total,
                   int64_t *n)
{
    const float *logits = row->logits;
    const double least_mass = sampling->min_p * (double)MTP_MASS_ONE;
    const double wanted = sampling->top_p < 1.0 ? sampling->top_p * (double)total : INFINITY;
    const int64_t k = sampling->top_k > 0 ? sampling->top_k : row->n_vocab;
    /* Candidates. Tokens below a share (1 - top_p) / n_vocab sum up to less than 1 - top_p. A
     * quarter keeps clear of the rounding of masses. */
    double share = sampling->min_p;
    if (sampling->top_p < 1.0) {
        const double tail =
            (1.0 - sampling->top_p) * (double)total / ((double)row->n_vocab * (double)MTP_MASS_ONE);
        share = tail > share ? tail : share;
    }
    const double lowest = share > 1e-30 ? (double)max + mtp_log(0.25 * share) : -INFINITY;
    const float kth = kth_maximum(row, k);
    int32_t *order = row->scratch->order;
    int64_t n_candidates = 0;
    for (int64_t begin = 0; begin < row->n_vocab; begin += MTP_CHUNK) {
        const float largest = row->scratch->maxima[begin / MTP_CHUNK];
        if (largest < kth || largest < lowest)
            continue;
        const int64_t end = begin + MTP_CHUNK < row->n_vocab ? begin + MTP_CHUNK : row->n_vocab;
        for (int64_t i = begin; i < end; i++)
            if (logits[i] >= kth && logits[i] >= lowest && logits[i] > -INFINITY)
                order[n_candidates++] = (int32_t)i;
    }
    heapify(order, n_candidates, logits);
    uint64_t sum = 0;
    int64_t first = n_candidates;
    while (first > 0 && n_candidates - first < k && (double)sum < wanted) {
        const int32_t i = pop(order, first, logits);
        const uint64_t mass = mtp_mass(logits[i], max);
        if ((double)mass < least_mass)
            break;
        sum += mass;
        first--;
    }
    *n = n_candidates;
    return first;
}

#endif
