/* y = w c / sqrt(sum(c^2) / n + eps) + bias, where c is x, or x less its mean where CENTRED.
 *
 * One CTA for one row, so a row's bits depend on that row alone. Of a sum every thread adds its own
 * columns (those of its number mod 256) in ascending order, then a fixed tree adds the threads:
 * lanes 16, 8, 4, 2, 1 apart, then the warps in order. A null weight stands for ones, a null bias
 * for nothing to add. Where BLOCK is not 0, blocks of as many values become codes, too
 * (quantise.cuh), and y is not written where it is null. Grid: rows. Block: 256.
 */
#include "early.cuh"
#include "quantise.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)

static __device__ __forceinline__ float total_of(float sum, float (&partial)[WARPS])
{
    for (int step = 16; step > 0; step >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if ((threadIdx.x & 31) == 0)
        partial[threadIdx.x >> 5] = sum;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < WARPS; i++)
        total += partial[i];
    return total;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    normalise(const float *__restrict__ x, const float *__restrict__ weight,
              const float *__restrict__ bias, float *__restrict__ y,
              signed char *__restrict__ codes, float *__restrict__ scales, short *__restrict__ sums,
              int width, float n, float eps)
{
    let_next_begin();
    __shared__ float of_values[WARPS], of_squares[WARPS];
    const int thread = threadIdx.x;
    const float *row = x + (size_t)blockIdx.x * width;

    float mean = 0.0f;
    if (CENTRED) {
        for (int i = thread; i < width; i += THREADS)
            mean += row[i];
        mean = __fdiv_rn(total_of(mean, of_values), (float)width);
    }
    float squares = 0.0f;
    for (int i = thread; i < width; i += THREADS)
        squares = fmaf(row[i] - mean, row[i] - mean, squares);
    squares = total_of(squares, of_squares);

    const float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(squares, n) + eps));
    const auto normal = [&](int i) {
        const float scaled = (row[i] - mean) * factor * (weight ? weight[i] : 1.0f);
        return bias ? scaled + bias[i] : scaled;
    };
    const size_t first = (size_t)blockIdx.x * width;
#if BLOCK
    const int n_blocks = width / BLOCK;
    for (int block = thread >> 5; block < n_blocks; block += WARPS) {
        float value[BLOCK / 32];
#pragma unroll
        for (int i = 0; i < BLOCK / 32; i++) {
            const int at = block * BLOCK + (thread & 31) * (BLOCK / 32) + i;
            value[i] = normal(at);
            if (y)
                y[first + at] = value[i];
        }
        store_block(value, (size_t)blockIdx.x * n_blocks + block, codes, scales, sums);
    }
#else
    for (int i = thread; i < width; i += THREADS)
        y[first + i] = normal(i);
#endif
}
