/* The Gumbel-max trick on a part of a row: of its tokens the one with the largest
 * logit / temperature + noise; at temperature 0 the one with the largest logit. NaN and -inf are
 * never chosen, nor what does not pass the cuts, where there are any; `tops` are then the rows' largest
 * logits. The noise is that of the token's id, which token_ids may name.
 *
 * Bits are cheap and logarithms are not. So all bits are drawn first, for a bound of what each token
 * may score; the score of the most promising one is computed, and then of those alone whose bound
 * reaches it. settle.cu takes parts together.
 * Grid: (rows, parts). Block: 256.
 */
#include "noise.cuh"
#include "winner.cuh"
#include "cut.cuh"

#define PER_THREAD 8

static __device__ __forceinline__ bool passes(const Cut &cut, float logit, float max, int row,
                                              int row_bits)
{
    return key_of(logit, row, row_bits) >= cut.last &&
           (cut.min_p == 0.0 || (double)mass_of(logit, max) >= cut.min_p * MASS_ONE);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    choose(const float *__restrict__ logits, const Chooser *__restrict__ choosers,
           const Cut *__restrict__ cuts, const int *__restrict__ tops,
           const int *__restrict__ token_ids, Winner *__restrict__ winners, int n_vocab,
           int row_bits, int is_greedy)
{
    __shared__ Winner partial[2][THREADS / 32];
    __shared__ double to_reach;
    const Chooser chooser = choosers[blockIdx.x];
    const bool is_noisy = chooser.temperature > 0.0 && !is_greedy;
    const double inverse = is_noisy ? 1.0 / chooser.temperature : 1.0;
    const float *row = logits + (size_t)chooser.row * n_vocab;
    const int n_parts = (n_vocab + THREADS * PER_THREAD - 1) / (THREADS * PER_THREAD);
    const int first = blockIdx.y * (THREADS * PER_THREAD) + threadIdx.x;

    Cut cut = {};
    float max = 0.0f;
    if (cuts) {
        cut = cuts[blockIdx.x];
        max = row[tops[blockIdx.x]];
    }

    double bounds[PER_THREAD];
    Winner promising = nobody();
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        const int at = first + i * THREADS;
        Winner bound = nobody();
        if (at < n_vocab && row[at] > __uint_as_float(0xff800000u) &&
            (!cuts || passes(cut, row[at], max, at, row_bits))) {
            bound = Winner{(double)row[at] * inverse, at};
            if (is_noisy)
                bound.score += noise_bound(noise_bits(chooser, token_ids ? token_ids[at] : at).y);
        }
        bounds[i] = bound.score;
        promising = better(promising, bound);
    }
    promising = best_of_block(promising, partial[0]);

    const auto score = [&](int at) {
        const double scaled = (double)row[at] * inverse;
        if (!is_noisy)
            return scaled;
        return scaled + gumbel(noise_bits(chooser, token_ids ? token_ids[at] : at));
    };
    Winner best = nobody();
    if (promising.row != NOBODY) {
        if (promising.row % THREADS == threadIdx.x)
            to_reach = score(promising.row);
        __syncthreads();
        unsigned left = 0;
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++)
            left |= (unsigned)(bounds[i] >= to_reach) << i;
        for (; left; left &= left - 1) {
            const int at = first + (__ffs((int)left) - 1) * THREADS;
            best = better(best, Winner{score(at), at});
        }
        best = best_of_block(best, partial[1]);
    }
    if (threadIdx.x == 0)
        winners[(size_t)blockIdx.x * n_parts + blockIdx.y] = best;
}
