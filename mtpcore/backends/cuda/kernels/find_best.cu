/* ids[row] = the columns of the n largest values of x[row], the best one first, the first of equals,
 * not a number as minus infinity; shares[row] = of each the logarithm of its share in the softmax of
 * the row, and the share.
 *
 * The best that are left are found n times over, each the best of those after the one before. The
 * exponentials of what values are less than the best one are added in sixteen lanes, value i in lane
 * i mod 16. Grid: rows. Block: 1024.
 */
#include "functions.cuh"
#include "noise.cuh"

#define THREADS 1024
#define LANES 16

/* A value of a row, and its column; n_columns where there is none. */
struct Placed {
    float value;
    int column;
};

static __device__ __forceinline__ bool is_before(Placed a, Placed b)
{
    return a.value > b.value || (a.value == b.value && a.column < b.column);
}

static __device__ __forceinline__ float number_or_least(float x)
{
    return x == x ? x : __uint_as_float(0xff800000u);
}

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
    const float least = __uint_as_float(0xff800000u);
    const float *own = x + (size_t)blockIdx.x * n_columns;
    int *found = ids + (size_t)blockIdx.x * n;
    float *made = shares + (size_t)blockIdx.x * n * 2;
    Placed last = {-least, -1};
    float top = 0.0f;
    for (int r = 0; r < n; r++) {
        Placed next = {least, n_columns};
        for (int c = threadIdx.x; c < n_columns; c += THREADS) {
            const Placed one = {number_or_least(own[c]), c};
            if (is_before(last, one) && is_before(one, next))
                next = one;
        }
        best[threadIdx.x] = next;
        __syncthreads();
        for (int half = THREADS / 2; half > 0; half /= 2) {
            if (threadIdx.x < half && is_before(best[threadIdx.x + half], best[threadIdx.x]))
                best[threadIdx.x] = best[threadIdx.x + half];
            __syncthreads();
        }
        last = best[0];
        top = r ? top : last.value;
        if (threadIdx.x == 0)
            found[r] = last.column, made[2 * r] = less_than(top, last.value);
        __syncthreads();
    }
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
