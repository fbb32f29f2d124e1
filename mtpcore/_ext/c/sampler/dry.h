/* DRY, "don't repeat yourself": tokens that would go on with a repetition are less likely, the more
 * so the longer it is (Philipp Emanuel Weidmann, text-generation-webui, pull request 5677, 2024).
 *
 * Of the latest tokens w[0 .. n), l(k) is how many before the end are the same as those before
 * w[n - k], at most the number of tokens after the latest breaker. Where l(k) is allowed_length or
 * more, w[n - k] would make the repetition longer, and its logit is lowered by
 * multiplier * base^(l(k) - allowed_length), with the largest l of all k. A token that breaks
 * repetitions by itself is never lowered. Ids below 0 break repetitions.
 *
 * It takes n steps, times the length of repetitions. For adjust.h alone. */
#ifndef MTPCORE_SAMPLER_DRY_H
#define MTPCORE_SAMPLER_DRY_H

#include <string.h>

#include "sampler/row.h"

#define MTP_LARGEST_PENALTY 1e30 /* leaves logits finite */

/* base^exponent, and how many exponents there are until it is as large as can be, n at most. */
static double power(double base, int64_t exponent)
{
    double product = 1.0;
    for (int64_t i = 0; i < exponent && product < MTP_LARGEST_PENALTY; i++)
        product *= base;
    return product;
}

static int64_t count_exponents(double base, int64_t n)
{
    int64_t count = 0;
    for (double product = 1.0; base > 1.0 && count < n && product < MTP_LARGEST_PENALTY; count++)
        product *= base;
    return count;
}

static int breaks_alone(const logits_row *row, const mtp_dry *dry, int32_t id)
{
    return dry->breakers && id < row->scratch->n_ids && allows(dry->breakers, id);
}

/* The length of the longest breaker that begins with tokens[0], of n; 0 if there is none. */
static int64_t breaker_length(const logits_row *row, const mtp_dry *dry, const int32_t *tokens,
                              int64_t n)
{
    if (tokens[0] < 0)
        return 1;
    int64_t longest = breaks_alone(row, dry, tokens[0]);
    const int32_t *spelled = dry->spelled;
    for (int64_t i = 0; i < dry->n_spelled; i++) {
        const int64_t length = *spelled++;
        if (length > longest && length <= n &&
            memcmp(spelled, tokens, (size_t)length * sizeof *tokens) == 0)
            longest = length;
        spelled += length;
    }
    return longest;
}

/* How many of n tokens come after the latest breaker. */
static int64_t count_after_breaker(const logits_row *row, const mtp_dry *dry, const int32_t *tokens,
                                   int64_t n)
{
    for (int64_t begin = n - 1; begin >= 0; begin--) {
        const int64_t length = breaker_length(row, dry, tokens + begin, n - begin);
        if (length > 0)
            return n - begin - length;
    }
    return n;
}

static void lower_repetitions(const logits_row *row, const mtp_dry *dry, const int32_t *history,
                              int64_t n_history)
{
    const int64_t skipped = skip_to_latest(n_history, dry->last_n), n = n_history - skipped;
    const int32_t *tokens = history + skipped, *last = tokens + n - 1;
    int32_t *lengths = row->scratch->counts; /* and 1 more; zero is none */
    const int64_t allowed = dry->allowed_length;
    int64_t most = count_after_breaker(row, dry, tokens, n);
    if (n <= allowed || most < allowed)
        return;
    const int64_t useful = allowed + count_exponents(dry->base, n);
    most = most < useful ? most : useful;
    for (int64_t k = 1; k < n; k++) {
        int64_t length = 0;
        while (length < most && length + k < n && last[-length] == last[-length - k])
            length++;
        const int64_t found = find_row(row, tokens[n - k]);
        if (length >= allowed && found >= 0 && lengths[found] <= length)
            lengths[found] = (int32_t)length + 1;
    }
    for (int64_t k = 1; k < n; k++) {
        const int64_t found = find_row(row, tokens[n - k]);
        if (found < 0 || lengths[found] == 0)
            continue; /* each token once */
        const double raised = dry->multiplier * power(dry->base, lengths[found] - 1 - allowed);
        lengths[found] = 0;
        if (!breaks_alone(row, dry, tokens[n - k]))
            row->scratch->logits[found] =
                (float)((double)row->scratch->logits[found] -
                        (raised < MTP_LARGEST_PENALTY ? raised : MTP_LARGEST_PENALTY));
    }
}

#endif
