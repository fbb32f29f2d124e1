/* The n tokens of a part of a row that score most (contest.cuh), the best one first. As in choose.cu
 * bounds are found first, and logarithms where a bound says that a token may be the next one; what is
 * computed for one place is kept for the places after it. merge_ranks.cu takes parts together.
 * Grid: (rows, parts). Block: 256.
 */
#include "noise.cuh"
#include "winner.cuh"
#include "cut.cuh"
#include "contest.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    rank(const float *__restrict__ logits, const Chooser *__restrict__ choosers,
         const Cut *__restrict__ cuts, const int *__restrict__ tops,
         const int *__restrict__ token_ids, Winner *__restrict__ candidates, int n_vocab,
         int row_bits, int n)
{
    __shared__ Winner partial[2][THREADS / 32];
    __shared__ double to_reach;
    const Contest contest(blockIdx.x, choosers, logits, token_ids, cuts, tops, n_vocab, row_bits,
                          false);
    const int n_parts = (n_vocab + THREADS * PER_THREAD - 1) / (THREADS * PER_THREAD);
    const int first = blockIdx.y * (THREADS * PER_THREAD) + threadIdx.x;

    double scores[PER_THREAD]; /* or bounds, where they are not known */
    unsigned left = 0, known = 0;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        const int at = first + i * THREADS;
        const bool is_in = contest.has(at);
        scores[i] = is_in ? contest.bound(at) : 0.0;
        left |= (unsigned)is_in << i;
    }

    Winner *own = candidates + ((size_t)blockIdx.x * n_parts + blockIdx.y) * n;
    for (int place = 0; place < n; place++) {
        Winner promising = nobody(), best = nobody();
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++)
            if (left >> i & 1)
                promising = better(promising, Winner{scores[i], first + i * THREADS});
        promising = best_of_block(promising, partial[0]);
        if (promising.row == NOBODY) { /* so it is for all threads, and all places after */
            for (; threadIdx.x == 0 && place < n; place++)
                own[place] = nobody();
            return;
        }
        if (promising.row % THREADS == threadIdx.x)
            to_reach = contest.score(promising.row);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            const int at = first + i * THREADS;
            if (!(left >> i & 1) || scores[i] < to_reach)
                continue;
            if (!(known >> i & 1))
                scores[i] = contest.score(at);
            known |= 1u << i;
            best = better(best, Winner{scores[i], at});
        }
        best = best_of_block(best, partial[1]);
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++)
            if (best.row == first + i * THREADS)
                left &= ~(1u << i);
        if (threadIdx.x == 0)
            own[place] = best;
    }
}
