/* The token of a part of a row that scores most (contest.cuh).
 *
 * Bits are cheap and logarithms are not. So all bits are drawn first, for a bound of what each token
 * may score; the score of the most promising one is computed, and then of those alone whose bound
 * reaches it. settle.cu takes parts together.
 * Grid: (rows, parts). Block: 256.
 */
#include "noise.cuh"
#include "winner.cuh"
#include "cut.cuh"
#include "contest.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    choose(const float *__restrict__ logits, const Chooser *__restrict__ choosers,
           const Cut *__restrict__ cuts, const int *__restrict__ tops,
           const int *__restrict__ token_ids, Winner *__restrict__ winners, int n_vocab,
           int row_bits, int is_greedy)
{
    __shared__ Winner partial[2][THREADS / 32];
    __shared__ double to_reach;
    const Contest contest(blockIdx.x, choosers, logits, token_ids, cuts, tops, n_vocab, row_bits,
                          is_greedy);
    const int n_parts = (n_vocab + THREADS * PER_THREAD - 1) / (THREADS * PER_THREAD);
    const int first = blockIdx.y * (THREADS * PER_THREAD) + threadIdx.x;

    double bounds[PER_THREAD];
    Winner promising = nobody();
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        const int at = first + i * THREADS;
        Winner bound = nobody();
        if (contest.has(at))
            bound = Winner{contest.bound(at), at};
        bounds[i] = bound.score;
        promising = better(promising, bound);
    }
    promising = best_of_block(promising, partial[0]);

    Winner best = nobody();
    if (promising.row != NOBODY) {
        if (promising.row % THREADS == threadIdx.x)
            to_reach = contest.score(promising.row);
        __syncthreads();
        unsigned left = 0;
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++)
            left |= (unsigned)(bounds[i] >= to_reach) << i;
        for (; left; left &= left - 1) {
            const int at = first + (__ffs((int)left) - 1) * THREADS;
            best = better(best, Winner{contest.score(at), at});
        }
        best = best_of_block(best, partial[1]);
    }
    if (threadIdx.x == 0)
        winners[(size_t)blockIdx.x * n_parts + blockIdx.y] = best;
}
