/* y[t] = minus infinity, but at the columns ids[t] the products of coming[t], a vector for each, with
 * one vector: for row `first` of a block its own of `start`, after it that of `going` of the column of
 * the row before whose product is largest, the first of equals, not a number as minus infinity. Rows
 * before `first` have minus infinity alone; `size` rows of a sequence are a block.
 *
 * Rows of a sequence stand in `order` from spans[t][1] on, row t at spans[t][0]. Every row walks from
 * the first one on. Products are added in sixteen lanes. Grid: rows. Block: 256.
 */
#include "vectors.cuh"

#define THREADS 256
#define RANKS 256 /* columns of a row */

extern "C" __global__ void __launch_bounds__(THREADS)
    block_walk(const int *__restrict__ ids, const float *__restrict__ start,
               const float *__restrict__ going, const float *__restrict__ coming,
               const int *__restrict__ order, const int *__restrict__ spans, float *__restrict__ y,
               int n_columns, int n_ranks, int width, int size, int first)
{
    __shared__ float scores[RANKS];
    const float least = __uint_as_float(0xff800000u);
    const size_t t = blockIdx.x;
    const int at = spans[3 * t], own = (at - spans[3 * t + 1]) % size, begin = at - own;
    float *made = y + t * n_columns;
    const float *before = start;
    for (int i = first; i <= own; i++) {
        const size_t row = order[begin + i];
        before = i == first ? start + row * width : before;
        if (threadIdx.x < n_ranks)
            scores[threadIdx.x] =
                inner_product(before, coming + (row * n_ranks + threadIdx.x) * width, width);
        __syncthreads();
        float most = least;
        int best = 0;
        for (int r = 0; i < own && r < n_ranks; r++)
            if (scores[r] > most)
                most = scores[r], best = r;
        before = going + (row * n_ranks + best) * width;
        if (i < own)
            __syncthreads();
    }
    for (int c = threadIdx.x; c < n_columns; c += THREADS)
        made[c] = least;
    __syncthreads();
    if (own >= first && threadIdx.x < n_ranks)
        made[ids[t * n_ranks + threadIdx.x]] = scores[threadIdx.x];
}
