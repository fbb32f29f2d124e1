/* The n best tokens of each row, of those that rank.cu found in its parts, with what the sampler's
 * ranking says of them (_ext/c/sampler/sampler.h): their probabilities, and their shares of the choice.
 * Places that nobody takes have the token -1. `totals` are the masses of whole rows.
 * Grid: rows. Block: 256.
 */
#include "noise.cuh"
#include "winner.cuh"
#include "cut.cuh"
#include "ranked.cuh"

/* Shares of n tokens, whose rows and masses are there; see mtp_rank. */
static __device__ void share_out(const Chooser &chooser, const float *row, const int *token_ids,
                                 float max, unsigned long long others, const int *rows,
                                 double *shares, int n)
{
    double largest = 0.0;
    for (int i = 0; i < n; i++) {
        const float logit = row[rows[i]];
        shares[i] = logit == max ? 0.0 : (double)logit - (double)max;
        if (chooser.temperature > 0.0) {
            const int token = token_ids ? token_ids[rows[i]] : rows[i];
            shares[i] += chooser.temperature * gumbel(noise_bits(chooser, token));
        }
        largest = shares[i] > largest ? shares[i] : largest;
    }
    double sum = largest < 700.0 ? (double)others / MASS_ONE * exponential_of(-largest) : 0.0;
    for (int i = 0; i < n; i++) {
        shares[i] = shares[i] - largest > -700.0 ? exponential_of(shares[i] - largest) : 0.0;
        sum += shares[i];
    }
    for (int i = 0; i < n; i++) {
        shares[i] /= sum;
        if (i > 0 && shares[i] > shares[i - 1])
            shares[i] = shares[i - 1]; /* rounding */
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    merge_ranks(const float *__restrict__ logits, const Chooser *__restrict__ choosers,
                const int *__restrict__ tops, const unsigned long long *__restrict__ totals,
                const int *__restrict__ token_ids, const Winner *__restrict__ candidates,
                Ranked *__restrict__ rankings, int n_vocab, int n_parts, int n)
{
    __shared__ Winner partial[2][THREADS / 32];
    __shared__ int rows[MOST_RANKS];
    __shared__ double shares[MOST_RANKS];
    const Winner *of_row = candidates + (size_t)blockIdx.x * n_parts * n;
    Winner last = nobody();
    int n_found = 0;
    for (; n_found < n; n_found++) {
        Winner best = nobody();
        for (int i = threadIdx.x; i < n_parts * n; i += THREADS) {
            const Winner one = of_row[i];
            const bool is_after =
                one.score < last.score || (one.score == last.score && one.row > last.row);
            if (one.row != NOBODY && (n_found == 0 || is_after))
                best = better(best, one);
        }
        last = best_of_block(best, partial[n_found % 2]);
        if (last.row == NOBODY)
            break;
        if (threadIdx.x == 0)
            rows[n_found] = last.row;
    }
    if (threadIdx.x)
        return;
    const Chooser chooser = choosers[blockIdx.x];
    const float *row = logits + (size_t)chooser.row * n_vocab;
    const float max = row[tops[blockIdx.x]];
    const unsigned long long total = totals[blockIdx.x];
    unsigned long long others = total;
    for (int i = 0; i < n_found; i++)
        others -= mass_of(row[rows[i]], max);
    share_out(chooser, row, token_ids, max, others, rows, shares, n_found);
    for (int i = 0; i < n; i++) {
        Ranked one = {0.0, 0.0f, -1};
        if (i < n_found) {
            const double mass = (double)mass_of(row[rows[i]], max);
            one = Ranked{shares[i], (float)(mass / (double)total),
                         token_ids ? token_ids[rows[i]] : rows[i]};
        }
        rankings[(size_t)blockIdx.x * n + i] = one;
    }
}
