/* y[row] = sum over ranks of shares[row][rank] x[row][rank], plus first[row] and second[row] (mix.cuh).
 * Where there is a counter, the CTA that ends last normalises all rows (normalise.cuh), less their mean
 * where they are centred.
 * Grid: values / 256 rounded up. Block: 256.
 */
#include "last.cuh"
#include "mix.cuh"
#include "quantise.cuh"
#include "normalise.cuh"

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    mix(const float *__restrict__ x, const float *__restrict__ shares,
        const float *__restrict__ first, const float *__restrict__ second, float *y, int n_rows,
        int n_ranks, int width, unsigned *counters, int is_centred, signed char *__restrict__ codes,
        float *__restrict__ scales, short *__restrict__ sums, int of_codes,
        const float *__restrict__ weight, const float *__restrict__ bias,
        float *__restrict__ normed, float eps)
{
    __shared__ float partial[2 * ALL_WARPS], of_warps[ALL_WARPS][32 * EACH];
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    const long long row = at / width;
    if (row < n_rows) {
        const float *in = x + row * n_ranks * width + at % width;
        y[at] = mixed(in, n_ranks, width, shares + row * n_ranks, first, second, at);
    }
    if (!counters || !ends_last(counters, gridDim.x))
        return;
    const Norm norm = {weight, bias, codes, scales, sums, width, (float)width, eps};
#pragma unroll 1
    for (int i = 0; i < n_rows; i++) {
        const size_t begin = (size_t)i * width;
        normalise_row<2>(norm, is_centred, of_codes, y + begin, normed ? normed + begin : normed, i,
                         partial, of_warps[threadIdx.x >> 5], [] {});
        __syncthreads(); /* all have read the sums */
    }
}
