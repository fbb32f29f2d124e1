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
    mix(const float *__restrict__ x, const float *__restrict__ shares, float *y, int n_rows,
        int n_ranks, int width, const float *__restrict__ first = nullptr,
        const float *__restrict__ second = nullptr, unsigned *counters = nullptr,
        int is_centred = 0, signed char *__restrict__ codes = nullptr,
        float *__restrict__ scales = nullptr, short *__restrict__ sums = nullptr, int of_codes = 0,
        const float *__restrict__ weight = nullptr, const float *__restrict__ bias = nullptr,
        float *__restrict__ normed = nullptr, float eps = 0)
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
