/* The chain's second part: which rows pass the cuts. For sampler.c alone. */
#ifndef MTPCORE_SAMPLER_CUTS_H
#define MTPCORE_SAMPLER_CUTS_H

#include <math.h>
#include <string.h>

#include "sampler/gumbel_max.h"
#include "sampler/heap.h"
#include "sampler/moments.h"
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

/* How far below the largest logit survivors of top_n_sigma are at most, as gaps: 0 or less. */
static double least_gap(const logits_row *row, const mtp_sampling *sampling, float max)
{
    if (!(sampling->top_n_sigma > 0.0))
        return -INFINITY;
    return -(sampling->top_n_sigma * deviation(row, max));
}

/* Put rows that may pass top_n_sigma and top_k into scratch->order and return how many they are:
 * none is missing. Of the others those below `lowest` are left out, too. */
static int64_t collect(const logits_row *row, double least_gap, double lowest, float kth, float max)
{
    const float *logits = row->logits;
    int32_t *order = row->scratch->order;
    int64_t n = 0;
    for (int64_t begin = 0; begin < row->n_vocab; begin += MTP_CHUNK) {
        const float largest = row->scratch->maxima[begin / MTP_CHUNK];
        if (largest < kth || largest < lowest || gap(largest, max) < least_gap)
            continue;
        const int64_t end = begin + MTP_CHUNK < row->n_vocab ? begin + MTP_CHUNK : row->n_vocab;
        for (int64_t i = begin; i < end; i++)
            if (logits[i] >= kth && logits[i] >= lowest && logits[i] > -INFINITY &&
                gap(logits[i], max) >= least_gap)
                order[n++] = (int32_t)i;
    }
    return n;
}

/* Of n rows in scratch->order the k likeliest are left, in any order; return how many they are. */
static int64_t keep_likeliest(const logits_row *row, int64_t k, int64_t n)
{
    if (k >= n)
        return n;
    int32_t *order = row->scratch->order;
    heapify(order, n, row->logits);
    for (int64_t i = 0; i < k; i++)
        pop(order, n - i, row->logits);
    memmove(order, order + n - k, (size_t)k * sizeof *order);
    return k;
}

/* The same with those whose -log p is nearest to its mean, until p sums up to typical_p. The
 * logarithm of the whole mass is in both, and left out. */
static int64_t keep_typical(const logits_row *row, const mtp_sampling *sampling, float max,
                            uint64_t total, int64_t n)
{
    int32_t *order = row->scratch->order;
    float *keys = row->scratch->keys;
    const double mean = mean_gap(add_up_row(row, max)),
                 wanted = sampling->typical_p * (double)total;
    for (int64_t i = 0; i < n; i++)
        keys[order[i]] = (float)-fabs(gap(row->logits[order[i]], max) - mean);
    heapify(order, n, keys);
    uint64_t sum = 0;
    int64_t first = n;
    while (first > 0 && (double)sum < wanted)
        sum += mtp_mass(row->logits[pop(order, first--, keys)], max);
    memmove(order, order + first, (size_t)(n - first) * sizeof *order);
    return n - first;
}

/* Of n rows the likeliest that pass top_k, top_p and min_p are moved to the end, the likeliest of
 * all last; return where they begin. Without these cuts rows stay where they are. */
static int64_t move_likeliest(const logits_row *row, const mtp_sampling *sampling, float max,
                              uint64_t total, int64_t n)
{
    const double wanted = sampling->top_p < 1.0 ? sampling->top_p * (double)total : INFINITY;
    const int64_t k = sampling->top_k > 0 && sampling->top_k < n ? sampling->top_k : n;
    if (sampling->top_k == 0 && wanted == INFINITY && !(sampling->min_p > 0.0))
        return 0;
    int32_t *order = row->scratch->order;
    heapify(order, n, row->logits);
    uint64_t sum = 0;
    int64_t first = n;
    double least_mass = 0.0;
    while (first > 0 && n - first < k && (double)sum < wanted) {
        const int32_t i = pop(order, first, row->logits);
        const uint64_t mass = mtp_mass(row->logits[i], max);
        if (first == n)
            least_mass = sampling->min_p * (double)mass;
        if ((double)mass < least_mass)
            break;
        sum += mass;
        first--;
    }
    return first;
}

/* XTC, "exclude top choices" (Philipp Emanuel Weidmann, text-generation-webui, pull request 6335,
 * 2024): of n rows those with xtc_threshold of all mass are left out, except for the least likely
 * of them. Return how many are left. */
static int64_t exclude_top_choices(const logits_row *row, const mtp_sampling *sampling, float max,
                                   uint64_t total, int32_t *rows, int64_t n)
{
    const mtp_noise noise = {sampling->seed, sampling->stream, (uint32_t)row->scratch->index};
    if (!(uniform(noise_bits(&noise, XTC_COIN)) < sampling->xtc_probability))
        return n;
    const double least_mass = sampling->xtc_threshold * (double)total;
    int32_t least = -1;
    for (int64_t i = 0; i < n; i++)
        if ((double)mtp_mass(row->logits[rows[i]], max) >= least_mass &&
            (least < 0 || comes_before(row->logits, least, rows[i])))
            least = rows[i];
    int64_t n_left = 0;
    for (int64_t i = 0; i < n; i++)
        if (rows[i] == least || (double)mtp_mass(row->logits[rows[i]], max) < least_mass)
            rows[n_left++] = rows[i];
    return n_left;
}

/* A logit that no survivor of top_p and min_p falls below. Tokens below a share
 * (1 - top_p) / n_vocab sum up to less than 1 - top_p. A quarter keeps clear of the rounding of
 * masses. Typical tokens may be any, and what they leave need not sum up to top_p. */
static double lowest_logit(const logits_row *row, const mtp_sampling *sampling, float max,
                           uint64_t total)
{
    if (sampling->typical_p < 1.0)
        return -INFINITY;
    double share = sampling->min_p;
    if (sampling->top_p < 1.0) {
        const double tail =
            (1.0 - sampling->top_p) * (double)total / ((double)row->n_vocab * (double)MTP_MASS_ONE);
        share = tail > share ? tail : share;
    }
    return share > 1e-30 ? (double)max + mtp_log(0.25 * share) : -INFINITY;
}

/* Put the rows that pass the cuts into scratch->order[returned .. *n); `total` is the whole mass
 * (only top_p, typical_p and XTC read it). */
static int64_t cut(const logits_row *row, const mtp_sampling *sampling, float max, uint64_t total,
                   int64_t *n)
{
    const int64_t k = sampling->top_k > 0 ? sampling->top_k : row->n_vocab;
    *n = collect(row, least_gap(row, sampling, max), lowest_logit(row, sampling, max, total),
                 kth_maximum(row, k), max);
    if (sampling->typical_p < 1.0)
        *n = keep_typical(row, sampling, max, total, keep_likeliest(row, k, *n));
    const int64_t first = move_likeliest(row, sampling, max, total, *n);
    if (sampling->xtc_probability > 0.0)
        *n = first + exclude_top_choices(row, sampling, max, total, row->scratch->order + first,
                                         *n - first);
    return first;
}

#endif
