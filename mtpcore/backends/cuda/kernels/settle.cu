/* The token of each row, or its place in it: the best of its parts' winners; `none` where there is
 * no winner.
 * Grid: rows. Block: 256.
 */
#include "winner.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    settle(const Winner *__restrict__ winners, const int *__restrict__ token_ids,
           int *__restrict__ ids, int n_parts, int none)
{
    __shared__ Winner partial[THREADS / 32];
    const Winner *of_row = winners + (size_t)blockIdx.x * n_parts;
    Winner best = nobody();
    for (int i = threadIdx.x; i < n_parts; i += THREADS)
        best = better(best, of_row[i]);
    best = best_of_block(best, partial);
    if (threadIdx.x)
        return;
    if (best.row == NOBODY)
        ids[blockIdx.x] = none;
    else
        ids[blockIdx.x] = token_ids ? token_ids[best.row] : best.row;
}
