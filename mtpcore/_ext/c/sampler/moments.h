/* What cuts and temperatures ask of many logits at once. For the sampler alone.
 *
 * Masses, and masses times gaps, are added up as whole numbers, which have the same sum in any
 * order; standard deviations in the order of rows. */
#ifndef MTPCORE_SAMPLER_MOMENTS_H
#define MTPCORE_SAMPLER_MOMENTS_H

#include <math.h>

#include "sampler/row.h"

/* How far a logit lies below the largest: 0 or less. */
static inline double gap(float logit, float max)
{
    return logit == max ? 0.0 : (double)logit - (double)max;
}

/* Of some rows: the sum of masses, and of masses times how far they lie below the largest logit. */
typedef struct {
    uint64_t mass, depth;
} moments;

static inline void add(moments *sums, float logit, float max)
{
    const uint64_t mass = mtp_mass(logit, max);
    if (mass == 0)
        return;
    sums->mass += mass;
    sums->depth += (uint64_t)((double)mass * -gap(logit, max) + 0.5);
}

static moments add_up_row(const logits_row *row, float max)
{
    moments sums = {0, 0};
    for (int64_t i = 0; i < row->n_vocab; i++)
        add(&sums, row->logits[i], max);
    return sums;
}

static moments add_up(const logits_row *row, float max, const int32_t *rows, int64_t n)
{
    moments sums = {0, 0};
    for (int64_t i = 0; i < n; i++)
        add(&sums, row->logits[rows[i]], max);
    return sums;
}

/* The mean of gaps by probability: 0 or less. */
static inline double mean_gap(moments sums) { return -((double)sums.depth / (double)sums.mass); }

/* The standard deviation of the logits above -inf. */
static double deviation(const logits_row *row, float max)
{
    double sum = 0.0, squares = 0.0;
    int64_t n = 0;
    for (int64_t i = 0; i < row->n_vocab; i++)
        if (gap(row->logits[i], max) > -INFINITY) {
            sum += gap(row->logits[i], max);
            n++;
        }
    const double mean = sum / (double)n;
    for (int64_t i = 0; i < row->n_vocab; i++)
        if (gap(row->logits[i], max) > -INFINITY) {
            const double from_mean = gap(row->logits[i], max) - mean;
            squares += from_mean * from_mean;
        }
    return sqrt(squares / (double)n);
}

#endif
