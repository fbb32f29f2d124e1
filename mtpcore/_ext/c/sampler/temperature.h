/* Dynamic temperature: between temperature - dynatemp_range and temperature + dynatemp_range, the
 * higher, the less the survivors of the cuts differ (kalomaze, koboldcpp, 2023; as in llama.cpp).
 *
 * low + (high - low) * (entropy / log n)^dynatemp_exponent, the entropy being that of the n
 * survivors at temperature 1, low no less than 0. For sampler.c alone. */
#ifndef MTPCORE_SAMPLER_TEMPERATURE_H
#define MTPCORE_SAMPLER_TEMPERATURE_H

#include "sampler/moments.h"
#include "sampler/row.h"

#define MTP_LEAST_TEMPERATURE 1e-30 /* its inverse times any logit is finite */

/* base^exponent of a base in [0, 1]. */
static double to_the_power(double base, double exponent)
{
    if (base < 1e-300)
        return exponent > 0.0 ? 0.0 : 1.0;
    const double logarithm = exponent * mtp_log(base);
    return logarithm > -690.0 ? mtp_exp(logarithm) : 0.0;
}

/* The entropy of n rows, as a part of the greatest that it could be. */
static double relative_entropy(const logits_row *row, float max, const int32_t *rows, int64_t n)
{
    const moments sums = add_up(row, max, rows, n);
    if (sums.mass == 0 || n < 2)
        return 0.0;
    const double scale = mtp_log((double)sums.mass / (double)MTP_MASS_ONE);
    const double entropy = (scale - mean_gap(sums)) / mtp_log((double)n);
    return entropy < 0.0 ? 0.0 : entropy < 1.0 ? entropy : 1.0;
}

static double temperature_of(const logits_row *row, const mtp_sampling *sampling, float max,
                             const int32_t *rows, int64_t n)
{
    const double range = sampling->dynatemp_range;
    if (!(range > 0.0))
        return sampling->temperature;
    const double low = sampling->temperature > range ? sampling->temperature - range : 0.0;
    const double high = sampling->temperature + range;
    const double share =
        to_the_power(relative_entropy(row, max, rows, n), sampling->dynatemp_exponent);
    const double temperature = low + (high - low) * share;
    return temperature > MTP_LEAST_TEMPERATURE ? temperature : MTP_LEAST_TEMPERATURE;
}

#endif
