/* ids[row] = the columns of the n largest values of x[row], the best one first, the first of equals,
 * not a number as minus infinity; shares[row] = of each the logarithm of its share in the softmax of
 * the row, and the share.
 *
 * The best that are left are found n times over, each the best of those after the one before. The
 * exponentials of what values are less than the best one are added in sixteen lanes, value i in lane
 * i mod 16. Grid: rows. Block: 1024.
 */
#include "best_first.cuh"
#include "functions.cuh"
#include "noise.cuh"

#define LANES 16

/* How much less than the best value x is. */
static __device__ __forceinline__ float less_than(float best, float x)
{
    return x < best ? x - best : 0.0f;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    find_best(const float *__restrict__ x, int *__restrict__ ids, float *__restrict__ shares,
              int n_columns, int n)
{
    __shared__ Placed best[THREADS];
    __shared__ float lanes[LANES];
    const float *own = x + (size_t)blockIdx.x * n_columns;
    int *found = ids + (size_t)blockIdx.x * n;
    float *made = shares + (size_t)blockIdx.x * n * 2;
    Placed last = before_all();
    float top = 0.0f;
    for (int r = 0; r < n; r++) {
        last = next_best(own, n_columns, last, best);
        top = r ? top : last.value;
        if (threadIdx.x == 0)
            found[r] = last.column, made[2 * r] = less_than(top, last.value);
    }
    __syncthreads();
    if (threadIdx.x < LANES) {
        float sum = 0.0f;
        for (int c = threadIdx.x; c < n_columns; c += LANES)
            sum += exponential(less_than(top, number_or_least(own[c])));
        lanes[threadIdx.x] = sum;
    }
    __syncthreads();
    for (int half = LANES / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            lanes[threadIdx.x] += lanes[threadIdx.x + half];
        __syncthreads();
    }
    for (int r = threadIdx.x; r < n; r += THREADS) {
        const float less = made[2 * r];
        made[2 * r] = (float)((double)less - logarithm((double)lanes[0]));
        made[2 * r + 1] = __fdiv_rn(exponential(less), lanes[0]);
    }
}
